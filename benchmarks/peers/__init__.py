"""The training loops to compare: one module each, whose ``make(task)`` returns a :class:`benchmarks.peers.task.Loop`.

Memory is compared too, so other libraries' loops import nothing of recurrl. ``sb3_training`` is a whole training run.
"""
