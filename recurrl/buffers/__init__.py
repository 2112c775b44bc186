"""Buffers: what learning draws its minibatches from."""
