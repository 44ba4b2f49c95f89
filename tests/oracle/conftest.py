"""Let torchvision load beside a CPU build of torch.

transformers' processors import torchvision for its transforms, which are plain torch. Its wheel is linked against CUDA; without the
compiled half two operators are missing that it wants to describe on import. Declaring them is enough: nothing here calls them.
"""

import importlib.util
import sys


def _import_torchvision():
    import torch

    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

        torchvision.declared_operators = declared


if importlib.util.find_spec("torchvision") is not None and importlib.util.find_spec("transformers") is not None:
    _import_torchvision()
