"""Options of the encoder, and of the recurrent layer: its cell, and how it is computed."""

from dataclasses import dataclass

from recurrl.config.options import FEATURES, IMAGES, LAYERS, NO_IMAGES, Condition, Range, option

NO_CELL = "none"
ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu")
A_CELL = Condition("a cell other than none", lambda run: run.cell.name != NO_CELL)


@dataclass
class CellConfig:
    """The recurrent cell; ``none`` puts a feed-forward layer of the same size in its place, as a control.

    A cell with further options derives a dataclass from this one.
    """

    name: str = option("the cell; none is the control without memory, a feed-forward layer of the same size")
    # A single feature that is normalised is always 0.
    hidden_size: int = option("width of the cell", Range(2, 2**16, integers=True))
    num_layers: int = option("number of stacked recurrent layers", LAYERS)


@dataclass
class MinGRUConfig(CellConfig):
    """Options of minGRU."""

    highway: bool = option("let the input bypass each layer through a gate; helps to train several layers")


@dataclass
class LMUConfig(CellConfig):
    """Options of the Legendre memory unit."""

    signals: int = option("number of signals that the memory holds", FEATURES)
    order: int = option("number of Legendre polynomials for each signal", FEATURES)
    theta: float = option("number of steps that the memory reaches back", Range(1, 10**6))


@dataclass
class LRUConfig(CellConfig):
    """Options of cells with a complex diagonal state: LRU and S5."""

    state_size: int = option("number of complex entries in the state", FEATURES)


@dataclass
class FFMConfig(CellConfig):
    """Options of fast and forgetful memory."""

    memory_size: int = option("number of traces, each with its own decay rate", FEATURES)
    context_size: int = option("number of contexts, each with its own frequency", FEATURES)


@dataclass
class MatrixMemoryConfig(CellConfig):
    """Options of cells with matrices as memory: mLSTM, Gated DeltaNet and Mamba-2."""

    heads: int = option("number of memory matrices", FEATURES)
    key_size: int = option("rows of each matrix: features of a key or a query", FEATURES)
    value_size: int = option("columns of each matrix: features of a value", FEATURES)


@dataclass
class StackConfig(CellConfig):
    """Options of the cell ``stack``: the last inputs, concatenated."""

    length: int = option("inputs that the output is computed from, including the current one", Range(2, 2**16, True))


@dataclass
class GTrXLConfig(StackConfig):
    """Options of GTrXL: attention over the last inputs."""

    heads: int = option("number of attention heads", FEATURES)
    key_size: int = option("features per attention head", FEATURES)


@dataclass
class BackendConfig:
    """The backend: the implementation of the recurrent layer."""

    name: str = option("the recurrent layer's implementation; auto: native (CPU), pad (GPU) or scan", only_with=A_CELL)


@dataclass
class EncoderConfig:
    """An encoder; one with further options derives a dataclass from this one."""

    name: str = option("the encoder")


@dataclass
class MLPConfig(EncoderConfig):
    """Dense layers for vectors and convolutions for images; each entry of a dict observation has its own."""

    sizes: list[int] = option("widths of the layers before the cell", FEATURES, only_with=NO_IMAGES)
    activation: str = option(
        "activation after each of these layers: tanh, relu, elu, silu or gelu", choices=ACTIVATIONS, only_with=NO_IMAGES
    )
    layer_norm: bool = option("layer normalisation before each of these activations", only_with=NO_IMAGES)
    images: str = option(
        "convolutions: nature (Mnih et al. 2015, from 36×36 pixels) or impala (Espeholt et al. 2018); or bits, dense "
        "layers on the bits of bytes; auto: bits for up to 200 cells of bytes, nature from 36×36, impala between",
        choices=("auto", "nature", "impala", "bits"),
        only_with=IMAGES,
    )
