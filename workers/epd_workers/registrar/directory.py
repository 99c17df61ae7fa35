"""The encoder directory that every prefill serves beside its engine."""

from __future__ import annotations

from typing import Any

import aiohttp

# Short: a prefill that hangs must not hold back the membership of the others for long.
TIMEOUT = aiohttp.ClientTimeout(total=3, connect=2)


class DirectoryError(Exception):
    """A prefill's directory did not answer, or refused."""


class Directory:
    """Client of the directories of all prefills.

    Args:
        session: Shared HTTP session.
        port: The port that every prefill's directory listens on.
    """

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._port = port

    @property
    def port(self) -> int:
        """Where the directories listen."""
        return self._port

    async def encoders(self, base: str) -> list[str]:
        """The encoder addresses that a prefill knows, spelled as it spells them.

        SGLang strikes an address only when asked in its own spelling, a trailing slash included.

        Args:
            base: The directory's address, ``http://IP:PORT``.

        Raises:
            DirectoryError: No answer, or not a list.
        """
        body = await self._call("GET", f"{base}/list_encoder_urls")
        try:
            return [str(url) for url in body["encoder_urls"]]
        except (KeyError, TypeError) as error:
            raise DirectoryError(f"GET {base}/list_encoder_urls: the answer is not an encoder list") from error

    async def register(self, base: str, encoder: str) -> None:
        """Tell a prefill of an encoder.

        Raises:
            DirectoryError: No answer, or refused.
        """
        await self._call("POST", f"{base}/register_encoder_url", encoder)

    async def unregister(self, base: str, encoder: str) -> None:
        """Make a prefill forget an encoder.

        Raises:
            DirectoryError: No answer, or refused.
        """
        await self._call("DELETE", f"{base}/unregister_encoder_url", encoder)

    async def _call(self, method: str, url: str, encoder: str | None = None) -> Any:
        body = None if encoder is None else {"url": encoder}
        try:
            async with self._session.request(method, url, json=body, timeout=TIMEOUT) as response:
                if response.status >= 300:
                    raise DirectoryError(f"{method} {url}: answered {response.status}")
                return await response.json(content_type=None) if encoder is None else None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise DirectoryError(f"{method} {url}: {str(error) or repr(error)}") from error
