"""Requests to a NeMo-Gym server. What goes wrong there is ServerFailed, in one sentence."""

import json
import math
import urllib.parse
from collections.abc import Mapping
from typing import Any

from cascade_jax.config import ConfigError
from cascade_jax.types import Verdict


class ServerFailed(Exception):
    """A server that is down, late, or answers what it must not: nothing that the model is to blame for."""


def checked_url(url: str, setting: str) -> str:
    """ConfigError: no http(s)://host[:port][/path]."""
    address = urllib.parse.urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(f"{setting}={url!r} is not an address; give the server's as http://host:port.")
    return url.rstrip("/")


class Session:
    """One client with its own cookies. Close it."""

    def __init__(self, url: str, *, seconds: float) -> None:
        """seconds: that the server may take for one answer."""
        import httpx

        self._errors = httpx.HTTPError
        self._where = url
        # Only a connection that could not be made is tried again: a request may have had its effect.
        transport = httpx.AsyncHTTPTransport(retries=2)
        self._client = httpx.AsyncClient(base_url=url, timeout=seconds, transport=transport, trust_env=False)

    async def post(self, path: str, content: Any) -> tuple[int, str]:
        """(status below 500, text). ServerFailed otherwise."""
        try:
            answer = await self._client.post(path, json=content)
        except self._errors as error:
            raise ServerFailed(f"{self._where}{path}: {error or type(error).__name__}") from error
        if answer.status_code >= 500:
            raise ServerFailed(f"{self._where}{path} answered {answer.status_code}: {answer.text[:200]}")
        return answer.status_code, answer.text

    async def post_for_object(self, path: str, content: Any) -> dict[str, Any]:
        """The JSON object of an answer 2xx. ServerFailed otherwise."""
        status, text = await self.post(path, content)
        if not 200 <= status < 300:
            raise ServerFailed(f"{self._where}{path} answered {status}: {text[:200]}")
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ServerFailed(f"{self._where}{path} answered no JSON object: {text[:200]!r}")
        return found

    async def close(self) -> None:
        await self._client.aclose()


def verdict_of(answer: Mapping[str, Any], where: str) -> Verdict:
    """Of what /verify or /run answered. ServerFailed: it holds no reward."""
    reward = answer.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise ServerFailed(f"{where} gave the reward {reward!r}, which is no number")
    given = answer.get("reward_components")
    parts = given.items() if isinstance(given, Mapping) else ()
    components = {str(k): float(v) for k, v in parts if isinstance(v, (int, float)) and math.isfinite(v)}
    if answer.get("mask_sample"):  # a time limit or the like, by which nothing is to be learned
        return Verdict(math.nan, {**components, "masked": 1.0}, no_verdict=f"{where} masked the sample")
    return Verdict(float(reward), components)
