"""The choices of each group: the package's, and custom ones, ``package.module:Name``.

A choice is a *factory*, a class or function whose first parameter is annotated with the dataclass of its options, which
derives from the group's (``CellConfig`` for a cell). ``gru`` in the group ``cell`` is short for
``recurrl.recurrent.cells.gru:make``.
"""

import difflib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, make_dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import yaml  # type: ignore[import-untyped]

from recurrl.config import cell
from recurrl.config.algorithm import DistillConfig, GRPOConfig, PPOConfig
from recurrl.config.collector import RayConfig, ReplayConfig, WorkersConfig
from recurrl.config.env import TorchRLConfig, VecEnvConfig
from recurrl.config.run import TrainConfig, WandbConfig
from recurrl.errors import ConfigError, user_code

GROUPS = {
    "env": "recurrl.envs.sources",
    "cell": "recurrl.recurrent.cells",
    "encoder": "recurrl.policy.encoders",
    "algorithm": "recurrl.algorithms",
    "collector": "recurrl.collector",
    "backend": "recurrl.recurrent.backends",
    "buffer": "recurrl.buffers",
    "logger": "recurrl.tracking",
}
"""The groups, from each of which a run has one choice, and the packages that implement the choices."""

PACKAGED_OPTIONS: dict[str, dict[str, type]] = {
    "env": {**dict.fromkeys(("vec_env", "mjlab", "envpool"), VecEnvConfig), "torchrl": TorchRLConfig},
    "cell": {
        "mingru": cell.MinGRUConfig,
        "lmu": cell.LMUConfig,
        "ffm": cell.FFMConfig,
        "stack": cell.StackConfig,
        "gtrxl": cell.GTrXLConfig,
        **dict.fromkeys(("lru", "s5"), cell.LRUConfig),
        **dict.fromkeys(("mlstm", "gated_deltanet", "mamba2"), cell.MatrixMemoryConfig),
    },
    "encoder": {"mlp": cell.MLPConfig},
    "algorithm": {"ppo": PPOConfig, "grpo": GRPOConfig, "distill": DistillConfig},
    "collector": {**dict.fromkeys(("multi_sync", "multi_async"), WorkersConfig), "ray": RayConfig},
    "backend": {},
    "buffer": {"replay": ReplayConfig},
    "logger": {"wandb": WandbConfig},
}
"""The options of the package's choices, by group and name; choices not listed here have the options of their group."""

PRESETS = ("experiment", "hparams_search")
"""Groups whose choices set values of other groups, or of Hydra."""

EXTRAS = {"popgym": "popgym", "minigrid": "minigrid", "ale_py": "atari", "mjlab": "mjlab", "envpool": "envpool"}
"""The extra of recurrl that installs a package, for each package that registers environments."""

_NAME = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_CUSTOM = re.compile(f"{_NAME}:{_NAME}")
_ADVICE = "examples/extending has one of each kind."


def key_of(group: str) -> str:
    """The key that names a group's factory."""
    return "env.source" if group == "env" else f"{group}.name"


def _override_key(group: str) -> str:
    """The key that sets a group's choice on the command line."""
    return "env.source" if group == "env" else group


def choice_names(group: str) -> tuple[str, ...]:
    """The package's factories of a group, in alphabetical order."""
    # Read from file names: importing the sources of environments would import torch.
    return _stems("envs/sources", ".py") if group == "env" else yaml_names(group)


def yaml_names(group: str) -> tuple[str, ...]:
    """The package's YAML files of a group, in alphabetical order."""
    return _stems(f"configs/{group}", ".yaml")


@cache
def _stems(folder: str, suffix: str) -> tuple[str, ...]:
    filenames = (path.name for path in files("recurrl").joinpath(folder).iterdir())
    return tuple(sorted(name.removesuffix(suffix) for name in filenames if name.endswith(suffix) and name[0] != "_"))


def _yaml(name: str) -> dict[str, Any]:
    """The content of a yaml of the package."""
    return yaml.safe_load((files("recurrl.configs") / f"{name}.yaml").read_text(encoding="utf-8"))


def default_name(group: str) -> str:
    """The choice of a group that a run has by default."""
    entries = _yaml("train")["defaults"]
    return next(entry[group] for entry in entries if isinstance(entry, dict) and group in entry)


def inherited_choice(group: str) -> str:
    """The choice of a group from which a custom choice inherits the values that it does not give."""
    return "gym" if group == "env" else default_name(group)


def yaml_values(group: str, name: str) -> dict[str, Any]:
    """The values in a yaml of the package, with those that it inherits, but not what it overrides in other groups."""
    content, inherited = _yaml(f"{group}/{name}"), dict[str, Any]()
    for base in content.pop("defaults", ["_self_"]):
        if isinstance(base, str):
            inherited |= content if base == "_self_" else yaml_values(group, base)
    return inherited


def is_declared_for(env_id: str, declared: Mapping[str, Any]) -> bool:
    """True if a yaml of ``env`` is for an environment: its id is the yaml's own, or matches a pattern in ``ids``."""
    name = env_id.rpartition(":")[2]
    own, patterns = declared.get("id", "???"), declared.get("ids", ())
    return own in ("???", env_id) or any(fnmatchcase(name, pattern) for pattern in patterns)


def choice_for(env_id: str) -> str:
    """The package's choice of ``env`` that declares a pattern which matches an id; else ``gym``."""
    others = (name for name in yaml_names("env") if name != "gym")
    return next((name for name in others if is_declared_for(env_id, yaml_values("env", name) | {"id": None})), "gym")


def custom_values(group: str, name: str) -> dict[str, Any]:
    """The values of a custom choice that has no yaml.

    An option without a default in its dataclass gets its value from the package's choice whose options the dataclass
    derives from, or else from the group's default (for environments: from ``gym``); "???" if that has no value.

    Raises:
        ConfigError: there is no such choice, or its factory does not name its options.
    """
    options = options_class(group, name)
    bases = {base_options(group): inherited_choice(group)}
    # Of several choices with the same options, the first.
    bases |= {cls: base for base, cls in reversed(PACKAGED_OPTIONS[group].items())}
    from_yaml = yaml_values(group, next(bases[cls] for cls in options.__mro__ if cls in bases)) | {"name": name}
    if group == "env":
        from_yaml |= {"source": name, "id": name.rpartition(":")[2]}
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(options)
    }
    return {key: from_yaml.get(key, "???") if default is MISSING else default for key, default in defaults.items()}


def is_custom(name: str) -> bool:
    """True for the name of a custom choice, ``package.module:Name``."""
    return ":" in name


def check_name(group: str, name: str) -> None:
    """Rejects a name that is neither one of the package's choices nor of the form of a custom one.

    Raises:
        ConfigError: the name is neither; the message lists the choices.
    """
    if name not in choice_names(group) and not is_custom(name):
        raise unknown_choice(group, _override_key(group), name, choice_names(group))


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name nearest to a mistyped or shortened one; None if none is near: a far guess would mislead."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75) or [
        one for one in known if one.startswith(f"{name}_")
    ]
    return near[0] if near else None


def suggestion(name: str, known: Sequence[str], before: str = "") -> str:
    """The question whether the :func:`nearest` known name was meant, after a space; empty if none is near."""
    near = nearest(name, known)
    return f" Did you mean {before}{near}?" if near else ""


def unknown_choice(group: str, key: str, name: str, known: Sequence[str]) -> ConfigError:
    """The error for ``key=name``, which does not exist, with the nearest of the known choices and all of them."""
    custom = ", or package.module:Name for a custom one" if group in GROUPS else ""
    meant = suggestion(name, known, f"{key}=")
    return ConfigError(f"{key}={name} does not exist.{meant} Choose one of: {', '.join(known)}{custom}.")


def factory(group: str, name: str) -> Callable[..., Any]:
    """The class or function that makes the choice ``name`` of a group.

    Raises:
        ConfigError: there is no such choice, module or name.
    """
    check_name(group, name)
    target = name if is_custom(name) else f"{GROUPS[group]}.{name}:make"
    return load(target, f"{_override_key(group)}={name}")


def load(target: str, setting: str) -> Any:
    """The object that ``package.module:Name`` names. The current folder is searched too, after what is installed.

    Args:
        target: the module and the name in it.
        setting: the key and value that name it, for the error.

    Raises:
        ConfigError: there is no such module, or no such name in it, or importing it fails.
    """
    if _CUSTOM.fullmatch(target) is None:
        raise ConfigError(f"{setting} must have the form package.module:Name, such as my_package.elman_cell:Elman.")
    module_name, _, name = target.partition(":")
    module = import_custom(module_name, setting)
    try:
        return attrgetter(name)(module)
    except AttributeError as error:
        # A notebook's __main__ has no file.
        place = f"at {module.__file__}" if hasattr(module, "__file__") else "the one of this session"
        advice = f"{suggestion(name, list(vars(module)))} It is {place}."
        raise ConfigError(f"{setting}: the module {module_name} has no {name}.{advice}") from error


def import_custom(module_name: str, setting: str) -> ModuleType:
    """A module or package that the configuration names, installed or in the current folder.

    Args:
        module_name: its dotted name.
        setting: the key and value that name it, for the error.

    Raises:
        ConfigError: it does not exist, or importing it fails; with the command that installs an extra of recurrl.
    """
    top = module_name.partition(".")[0]
    # An extra is never imported from the current folder: in a downloaded one, nobody expects such a file.
    if top in EXTRAS and importlib.util.find_spec(top) is None:
        raise ConfigError(f"{setting} needs the package {top}. Install it with: pip install 'recurrl[{EXTRAS[top]}]'")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, to hide no installed module
    with user_code(f"{setting}: importing {module_name} fails"):
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = error.name
            if missing is None:
                raise
            if f"{module_name}.".startswith(f"{missing}."):
                raise ConfigError(
                    f"{setting}: there is no module {missing}. Install its package, or run from the folder it is in."
                ) from error
            extra = f", for example with: pip install 'recurrl[{missing}]'" * module_name.startswith("recurrl.")
            raise ConfigError(
                f"{setting} needs the module {missing}, which is not installed. Install it{extra}."
            ) from error


def base_options(group: str) -> type:
    """The dataclass from which the options of a group's choices derive."""
    return get_type_hints(TrainConfig)[group]


def options_class(group: str, name: str) -> type:
    """The dataclass of a choice's options, with which the first parameter of its factory is annotated.

    The options of the package's choices are in :data:`PACKAGED_OPTIONS`, so that finding them does not import torch.

    Raises:
        ConfigError: there is no such choice, or its factory is not annotated with a dataclass of the group's options.
    """
    base, setting = base_options(group), f"{_override_key(group)}={name}"
    check_name(group, name)
    if not is_custom(name):
        return PACKAGED_OPTIONS[group].get(name, base)
    make = factory(group, name)
    with user_code(f"{setting}: reading the parameters of its factory fails", _ADVICE):
        hints = get_type_hints(make.__init__ if inspect.isclass(make) else make)
        options = next((hints.get(name) for name in inspect.signature(make).parameters), None)
    if not (inspect.isclass(options) and is_dataclass(options) and issubclass(options, base)):
        raise ConfigError(
            f"{setting}: the first parameter of its factory must be annotated with a dataclass derived from "
            f"recurrl.config.{base.__name__}, its options (got {getattr(options, '__name__', 'no annotation')}). "
            + f"An environment itself is env=gym env.id={name}. " * (group == "env")
            + _ADVICE
        )
    if inspect.get_annotations(options) and "__dataclass_fields__" not in vars(options):
        raise ConfigError(f"{setting}: its options {options.__name__} must be a dataclass. Put @dataclass above it.")
    return options


def merged_options(classes: Sequence[type]) -> type:
    """One dataclass with the options of several, for a list of choices."""
    first, *others = sorted(dict.fromkeys(classes), key=lambda each: len(each.__mro__), reverse=True)
    return make_dataclass(f"{first.__name__}AndOthers", (), bases=(first, *others)) if others else first
