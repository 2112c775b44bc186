"""The configuration of a run: its schema, the choices of each group, and plug-ins. Nothing here imports torch."""

from recurrl.config.algorithm import AlgorithmConfig, ClippedConfig, GRPOConfig, PPOConfig
from recurrl.config.cell import NO_CELL, BackendConfig, CellConfig, PrecisionConfig, RecomputeConfig
from recurrl.config.collector import BufferConfig, CollectorConfig, WorkersConfig
from recurrl.config.encoder import EncoderConfig, MLPConfig
from recurrl.config.env import INLINE, NATIVE, EnvConfig
from recurrl.config.logger import LoggerConfig, WandbConfig
from recurrl.config.run import (
    AUTO_DEVICE,
    BURN_IN,
    REFRESH,
    STATE_POLICIES,
    STORED,
    ZERO,
    CheckpointConfig,
    EvaluationConfig,
    PolicyConfig,
    TrainConfig,
)

__all__ = [
    "AUTO_DEVICE",
    "BURN_IN",
    "INLINE",
    "NATIVE",
    "NO_CELL",
    "REFRESH",
    "STATE_POLICIES",
    "STORED",
    "ZERO",
    "AlgorithmConfig",
    "BackendConfig",
    "BufferConfig",
    "CellConfig",
    "CheckpointConfig",
    "ClippedConfig",
    "CollectorConfig",
    "EncoderConfig",
    "EnvConfig",
    "EvaluationConfig",
    "GRPOConfig",
    "LoggerConfig",
    "MLPConfig",
    "PPOConfig",
    "PolicyConfig",
    "PrecisionConfig",
    "RecomputeConfig",
    "TrainConfig",
    "WandbConfig",
    "WorkersConfig",
]
