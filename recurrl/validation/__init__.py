"""The rules of a configuration.

The values of a single key are in its field, see :mod:`recurrl.config.options`. What depends on other values, or on the
machine, is in the module of its subject, each with ``check(config)``.
"""

from recurrl.validation.rules import check_config

__all__ = ["check_config"]
