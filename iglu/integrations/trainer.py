"""The callback for transformers' Trainer, available as ``iglu.integrations.transformers.TailCallback``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from iglu.integrations import require
from iglu.probing.training import TailMonitor

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    TrainerCallback = require("transformers", "trainer_callback")[0].TrainerCallback


class TailCallback(TrainerCallback):  # type: ignore[misc]
    """Log the metrics of :class:`iglu.probing.training.TailMonitor` (tails, dead units, learned sigmas).

        trainer = Trainer(model, arguments, train_dataset=data)
        trainer.add_callback(TailCallback(trainer, every=100))

    Metrics go through ``trainer.log`` to everything the trainer reports to.  With several processes, only the
    first one monitors, on its part of the batch.

    Args:
        trainer: The Trainer that gets the callback; transformers does not pass it to callbacks.
        every: The number of optimizer steps between two logs.
        options: ``k`` and ``keep`` of :class:`~iglu.probing.training.TailMonitor`.
    """

    def __init__(self, trainer: Any, every: int = 100, **options: Any) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.trainer, self.every, self.options = trainer, every, options
        self._monitor: TailMonitor | None = None
        self._watched = contextlib.ExitStack()

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.is_world_process_zero and (state.global_step + 1) % self.every == 0:
            if self._monitor is None or self._monitor.model is not model:
                self._monitor = TailMonitor(model, **self.options)
            self._watched.enter_context(self._monitor.step())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._monitor is not None and state.global_step % self.every == 0:
            self._watched.close()
            self.trainer.log(self._monitor.metrics())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._watched.close()  # after a step that failed
