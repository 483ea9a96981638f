"""The networks of the paper; each takes ``make_activation``, called once for every place of an activation."""

from iglu.lab.models.gpt2 import GPT2, GPT2Config
from iglu.lab.models.resnet import ResNet, load_trained_resnet20, resnet, resnet20

__all__ = ["GPT2", "GPT2Config", "ResNet", "load_trained_resnet20", "resnet", "resnet20"]
