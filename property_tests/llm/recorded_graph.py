"""CUDA's graphs on a CPU: operations are recorded with their tensors, and replayed on the same memory."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Recorder(TorchDispatchMode):
    def __init__(self, operations):
        super().__init__()
        self.operations = operations

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, result))
        return result


class RecordedGraph:
    """Stands in for `torch.cuda.CUDAGraph`. What Python decided while it was recorded stays decided."""

    def __init__(self):
        self.operations = []
        self.num_replays = 0

    def capture_begin(self, **_):
        """Record from here on."""
        self.recorder = _Recorder(self.operations)
        self.recorder.__enter__()

    def capture_end(self):
        """Record no more."""
        self.recorder.__exit__(None, None, None)

    def replay(self):
        """Do it all again, and leave every result where it was before."""
        self.num_replays += 1
        for function, args, kwargs, result in self.operations:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
