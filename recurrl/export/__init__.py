"""Policies as files that run without recurrl: ONNX, and programs of ``torch.export``."""
