"""Callbacks of Kafka clients: named in a file as `module:function`, and with errors that are logged."""

import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from harvest_lib.errors import ConfigError
from harvest_lib.telemetry.harmless import Harmless

TOKENS = "oauth_cb"
"""The callback that gives a client its tokens."""
_OBSERVERS = ("error_cb", "stats_cb", "throttle_cb")

_log = logging.getLogger(__name__)
_CALLBACKS = Harmless(_log, "client_callback_failed")


def with_functions(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings with the functions that their callbacks name as `module:function`. Raises ConfigError for a
    function that cannot be imported."""
    return {
        name: _function(name, value) if name.endswith("_cb") and isinstance(value, str) else value
        for name, value in settings.items()
    }


def with_logged_errors(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings whose callbacks log their errors. Observers suppress the errors, because the client's `poll` and
    `consume` would raise them; the callback that gives tokens raises the errors, which librdkafka does not tell."""
    made: dict[str, Any] = {name: _harmless(settings[name]) for name in _OBSERVERS if callable(settings.get(name))}
    if callable(give_token := settings.get(TOKENS)):
        made[TOKENS] = _told(give_token)
    return {**settings, **made}


def _function(setting: str, text: str) -> object:
    module, _, name = text.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # a module of the user may raise any
        raise ConfigError(
            f"{text!r} cannot be imported: {type(error).__name__}: {error}",
            field=setting,
            next_step="install its package where the harvester runs, or put its folder on PYTHONPATH",
        ) from error
    if not callable(found):
        raise ConfigError(f"{text!r} is no function", field=setting, next_step="name a function as `module:function`")
    return found


def _harmless(observer: Any) -> Callable[..., None]:
    def call(*arguments: object) -> None:
        with _CALLBACKS:
            observer(*arguments)

    return call


def _told(give_token: Callable[[str], object]) -> Callable[[str], object]:
    def call(config: str) -> object:
        try:
            return give_token(config)
        except Exception as error:
            _log.warning("kafka_token_failed", extra={"reason": f"{type(error).__name__}: {error}"})
            raise

    return call
