"""The network: Flax NNX modules declare the weights, `apply` offers pure functions over a nested dict of arrays."""
