"""The console commands, one file each; ``compare`` also holds ``recurrl-report``.

``train`` prints help, its version and errors about mistyped commands without importing torch.
"""
