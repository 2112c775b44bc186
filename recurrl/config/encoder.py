"""Options of encoders: from an observation to the vector that enters the cell."""

from dataclasses import dataclass

from recurrl.config.options import FEATURES, IMAGES, NO_IMAGES, option


@dataclass
class EncoderConfig:
    """An encoder; one with further options derives a dataclass from this one."""

    name: str = option("the encoder")


@dataclass
class MLPConfig(EncoderConfig):
    """Dense layers for vectors and convolutions for images; each entry of a dict observation has its own."""

    sizes: list[int] = option("widths of the tanh layers before the cell", FEATURES, only_with=NO_IMAGES)
    layer_norm: bool = option("normalise these layers before their tanh", only_with=NO_IMAGES)
    images: str = option(
        "convolutions: nature (Mnih et al. 2015, from 36×36 pixels) or impala (Espeholt et al. 2018)",
        choices=("nature", "impala"),
        only_with=IMAGES,
    )
