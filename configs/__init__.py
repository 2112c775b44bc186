"""The configuration tree, installed as the package ``recurrl.configs``."""
