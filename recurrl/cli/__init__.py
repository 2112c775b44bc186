"""The console commands, one file each.

``train`` prints help, its version and errors about mistyped commands without importing torch.
"""
