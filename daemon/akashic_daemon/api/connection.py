"""Connections of clients that stop speaking HTTP, or never finish what they began to say.

uvicorn answers what isn't HTTP by itself, also while an answer of ours runs, and waits for ever for the rest of a request.
Here such an answer learns that its client has gone, and who keeps a connection without a request is told so and let go:
a process has a thousand of them or so. When there are many, who has waited longest makes room. A client that closes its sending side counts as gone, as everywhere in asyncio.
Who is answered for the last time while it still sends is listened to for a while: a connection that is closed with bytes
waiting in it is reset, and the answer lost.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Transport
from collections.abc import Callable
from contextlib import suppress

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from akashic_daemon.api.border import SKIPPED_BYTES

logger = logging.getLogger("akashic.http")
HEAD_LIMIT_S = 60.0
"""So long a request may take until its headers are complete."""
LINGER_S = 30.0
"""So long a client may go on sending after the last answer before it reads that."""
LINGER_PAUSE_S = 5.0
"""So long it may pause meanwhile."""
MOST_CONNECTIONS = 1000
"""So many at once: each takes a file of the process, and without files nobody is served any more, not even by the socket."""
_TELL_EVERY_S = 60.0
LINGER_AT_STOP_S = 1.0
"""So long it may go on when the daemon stops."""
BODY_PAUSE_LIMIT_S = 60.0
"""So long a client may pause in the middle of a body; how long all of it takes is its own affair."""


class Connection(H11Protocol):
    """One connection."""

    _timer: asyncio.TimerHandle | None = None
    _left_bytes: int | None = None
    """So much is still thrown away of a client that had its last answer; None for others."""
    _lingers_until_s = 0.0
    _stops = False
    _idle_since_s = 0.0
    _told_s = -_TELL_EVERY_S
    """When it was last said, of all connections, that there are too many."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._answered = _Answered(transport, self._end, self._has_ended)
        self._idle_since_s = self.loop.time()
        self._wait(HEAD_LIMIT_S)
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def _make_room(self) -> None:
        """Close whoever has waited longest without a whole request; it may be the newest, if all others have one."""
        now_s = self.loop.time()
        if now_s - Connection._told_s >= _TELL_EVERY_S:
            Connection._told_s = now_s
            logger.warning(
                "there are more than %d connections: those that ask for nothing are closed", MOST_CONNECTIONS
            )
        ours = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        waiting = [one for one in ours if not one._answers or one.cycle.more_body]
        if waiting:
            min(waiting, key=lambda one: one._idle_since_s).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, and wait for the rest if there must be one."""
        if self._left_bytes is not None:
            self._throw_away(len(data))
            return
        super().data_received(data)
        self._watch(is_idle=False)

    def handle_events(self) -> None:
        """Serve what has come; who answers it closes the connection by way of us."""
        super().handle_events()
        if self.cycle is not None:
            self.cycle.transport = self._answered

    def on_response_complete(self) -> None:
        """Stop waiting for a body that nobody wants any more; the next request may have begun to come."""
        if self._left_bytes is not None:
            return
        super().on_response_complete()
        self._idle_since_s = self.loop.time()
        self._watch(is_idle=not self.conn.trailing_data[0])

    def send_400_response(self, msg: str) -> None:
        """Refuse what isn't HTTP; a request that is being answered learns that its client has gone."""
        if self._answers:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # an answer has begun, or was the last one
            return
        self._refuse(msg)

    def _refuse(self, msg: str) -> None:
        """Answer 400 and throw away what still comes: closed at once, the connection is reset and the answer lost."""
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        self.transport.write(
            self.conn.send(h11.Response(status_code=400, headers=headers, reason=b"Bad Request")) or b""
        )
        with suppress(h11.LocalProtocolError):  # HEAD was asked for, and takes no reason after the status
            self.transport.write(self.conn.send(h11.Data(data=msg.encode("ascii", "replace"))) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self._linger()

    def _end(self) -> None:
        """Close after the last answer, at once if nothing of its request is still to come."""
        if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0] or self.flow.read_paused:
            self._linger()
        else:
            self.transport.close()

    def _has_ended(self) -> bool:
        return self._left_bytes is not None or self.transport.is_closing()

    def _linger(self) -> None:
        """Say that nothing more will be sent, and throw away what still comes."""
        if self.transport.is_closing():
            return
        self._stop_waiting()
        try:
            self.transport.write_eof()
        except OSError:  # it has reset the connection
            self.transport.abort()
            return
        self._left_bytes = SKIPPED_BYTES
        self._lingers_until_s = self.loop.time() + (LINGER_AT_STOP_S if self._stops else LINGER_S)
        self.flow.resume_reading()
        self._throw_away(0)

    def _throw_away(self, size_bytes: int) -> None:
        assert self._left_bytes is not None
        self._left_bytes -= size_bytes
        self._stop_waiting()
        if self._left_bytes < 0:
            self.transport.close()
        else:
            ends_s = min(self._lingers_until_s, self.loop.time() + LINGER_PAUSE_S)
            self._timer = self.loop.call_at(ends_s, self.transport.close)

    def shutdown(self) -> None:
        """Close when there is nothing to be answered; who has its last answer isn't waited for."""
        self._stops = True
        if self._left_bytes is not None:
            self.transport.close()
        else:
            super().shutdown()

    @property
    def _answers(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self, *, is_idle: bool) -> None:
        """Set the timer to what is waited for. Bytes of headers that trickle in don't make it later; those of a body do."""
        if self._left_bytes is not None:
            return
        if self.transport.is_closing() or (is_idle and not self._answers):
            self._stop_waiting()
        elif not self._answers:
            if self._timer is None:
                self._wait(HEAD_LIMIT_S)
        else:
            self._stop_waiting()
            if self.cycle.more_body:
                self._wait(BODY_PAUSE_LIMIT_S)

    def _wait(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._give_up, seconds)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, seconds: float) -> None:
        self._timer = None
        if self._answers and self.flow.read_paused:
            self._wait(seconds)  # it is us who don't read on
            return
        part = "body" if self._answers else "headers"
        logger.info("a client is let go: its request's %s didn't go on for %g s", part, seconds)
        if self._answers or self.conn.trailing_data[0]:
            self.send_400_response(f"The request's {part} did not go on for {seconds:g} s.")
        else:
            self.transport.close()


class _Answered(Transport):
    """A connection's transport as an answer sees it: closed by that, it lingers."""

    def __init__(self, transport: Transport, end: Callable[[], None], has_ended: Callable[[], bool]) -> None:
        super().__init__()
        self._transport = transport
        self._end = end
        self._has_ended = has_ended

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send."""
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Tell if nothing more can be said: it lingers, or is closed."""
        return self._has_ended()

    def close(self) -> None:
        """Close when the client has said all."""
        self._end()
