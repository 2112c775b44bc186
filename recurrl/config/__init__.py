"""The configuration of a run: its schema, the choices of each group, and plug-ins. Importing it does not import torch.

The options of custom choices derive from the dataclasses below.
"""

from recurrl.config.algorithm import AlgorithmConfig, ClippedConfig, DistillConfig, GRPOConfig, PPOConfig
from recurrl.config.cell import BackendConfig, CellConfig, EncoderConfig, MLPConfig
from recurrl.config.collector import BufferConfig, CollectorConfig, WorkersConfig
from recurrl.config.env import EnvConfig
from recurrl.config.run import LoggerConfig, PolicyConfig, PretrainConfig, TrainConfig, WandbConfig

__all__ = [
    "AlgorithmConfig",
    "BackendConfig",
    "BufferConfig",
    "CellConfig",
    "ClippedConfig",
    "CollectorConfig",
    "DistillConfig",
    "EncoderConfig",
    "EnvConfig",
    "GRPOConfig",
    "LoggerConfig",
    "MLPConfig",
    "PPOConfig",
    "PolicyConfig",
    "PretrainConfig",
    "TrainConfig",
    "WandbConfig",
    "WorkersConfig",
]
