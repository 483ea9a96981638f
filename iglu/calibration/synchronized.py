"""Run several forwards in step: all pause before the same layer.

A layer is corrected on the outputs of the corrected layers before it, for every batch.  Instead of running
the model once per layer, each batch runs once, in its own thread, and only one thread runs at a time.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from iglu.model_runner import first_tensor


class _Cancelled(BaseException):
    """Ends a forward that is no longer needed; not an Exception, which a model might catch."""


_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps", "mtia", "hpu", "xla", "maia", "ipu", "privateuseone")


def _autocast_dtypes() -> dict[str, torch.dtype]:
    """The dtype of each device type for which autocast is enabled in this thread."""
    enabled = filter(torch.is_autocast_enabled, _AUTOCAST_DEVICES)
    return {device: torch.get_autocast_dtype(device) for device in enabled}


@contextlib.contextmanager
def no_autocast() -> Iterator[None]:
    """Disable autocast for all device types."""
    with contextlib.ExitStack() as stack:
        for device in _autocast_dtypes():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def _thread_settings(autocast: Mapping[str, torch.dtype], default_device: torch.device) -> Iterator[None]:
    """Apply the caller's autocast and default device in a new thread, which does not inherit them."""
    with contextlib.ExitStack() as stack:
        for device, dtype in autocast.items():
            # not cached: a copy of a weight from before its correction might be in the cache
            stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
        if default_device != torch.get_default_device():
            stack.enter_context(default_device)
        yield


class PausedForward(threading.Thread):
    """One forward, which pauses at each stop; autocast and the default device are those of its creator."""

    def __init__(self, forward: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._forward = forward
        self._settings = _thread_settings(_autocast_dtypes(), torch.get_default_device())
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._is_cancelled = False
        self._error: BaseException | None = None
        self.stop = -1  # the number of the current stop
        self.value: Tensor | None = None  # the input of the layer at this stop
        self.is_over = False
        self.start()

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._is_cancelled:
                with torch.no_grad(), self._settings:
                    self._forward()
        except _Cancelled:
            pass
        except BaseException as error:  # raised again by run_to()
            self._error = error
        self.is_over, self.value = True, None
        self._paused.release()

    def pause(self, stop: int, value: Tensor) -> None:
        """Pause at a stop; called in the thread itself."""
        self.stop, self.value = stop, value
        self._paused.release()
        self._go.acquire()
        self.value = None
        if self._is_cancelled:
            raise _Cancelled

    def run_to(self, stop: int) -> Tensor | None:
        """Run to a stop and return the input of its layer; None if the forward does not reach it (again).
        A number beyond the last stop runs the forward to its end."""
        while self.stop < stop and not self.is_over:
            self._advance()
            if self._error is not None:
                raise self._error
        return self.value if self.stop == stop else None

    def cancel(self) -> None:
        self._is_cancelled = True
        while not self.is_over:
            self._advance()
        self.join()

    def _advance(self) -> None:
        self._go.release()
        self._paused.acquire()


@contextlib.contextmanager
def paused_forwards(
    forwards: Sequence[Callable[[], Any]], stops: Sequence[nn.Module]
) -> Iterator[list[PausedForward]]:
    """Start each forward in a thread; it pauses before each of the stops, with the input of that layer."""

    def pause(number: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        paused = threading.current_thread()
        if isinstance(paused, PausedForward):
            paused.pause(number, first_tensor(args, kwargs))

    with contextlib.ExitStack() as stack:
        for number, module in enumerate(stops):
            hook = functools.partial(pause, number)
            stack.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        started = [PausedForward(forward) for forward in forwards]
        for paused in started:
            stack.callback(paused.cancel)
        yield started
