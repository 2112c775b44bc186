"""The console commands, one file each.

``train`` answers help, versions and mistyped commands without torch.
"""
