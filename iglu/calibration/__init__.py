"""Recalibrate a trained model after a swap, or convert it to exact ReLU."""

from iglu.calibration.recalibrate import Recalibration, recalibrate, to_relu

__all__ = ["Recalibration", "recalibrate", "to_relu"]
