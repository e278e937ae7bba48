"""Leadership by a lock in the harvested database, for pools that elect their leader without Kafka.

    standby ──takes the lock──► successor ──predecessor's term over or fenced──► leader ──no fresh proof──► fenced
       ▲                            │                                          │                          │
       ├───── the session ended ────┴──────────────────────────────────────────┼──────────────────────────┤
       └─────────── stopped: records in flight landed, lock released ──────────┘      proof: leader again, new id

Promises
- At any time, the actions of at most one term of a group take effect, however sessions end. A proof is an answer of the
  server that this very session holds the lock. A term is live for the heartbeat timeout, counted from the time at which
  its newest proof was *requested*.
- A server that loses a session (restart, crash, `pg_terminate_backend`, a reset connection) frees the lock at once,
  but the former holder still believes that it leads. If both leaders have the same fence (`transactional`, `sequenced`;
  the rows of the subscription show this, see `last_leaders`), actions of the former holder have no effect after the
  next leader has begun. So the next leader begins at once, and for a moment two terms may be live.
- Without such a fence the next holder of the lock waits for the session timeout before its term begins. By then the
  lease of its predecessor is over, and the predecessor's queue has expired.
- The next holder does not wait either if its predecessor has left in order, so that no record is in flight. The
  predecessor signals this by holding a second lock for a moment. The successor sees the signal, and begins when the
  second lock is free again, so that it never takes an old signal for a new signal. A leader leaves without the signal
  if its own wait was not over, if it has records in flight or abandoned records, or if it was fenced less than a
  session timeout ago.
- If Kafka has not answered a leader for the session timeout, and another process stands for the lock, the leader leaves
  and does not stand for the lock again before Kafka answers. Without such a process the leader stays and retries.
- The server ends the session of a process that is frozen or cut off, after the heartbeat timeout
  (`idle_session_timeout`, Postgres 14).

Limits
- Without a fence, with the defaults, a killed leader is followed after 10 s, a frozen leader after 15 s. The first
  process to start waits 10 s too, because it cannot know that there was no leader. With a fence the next leader follows
  a killed leader after a moment, and a frozen leader after 5 s.
- All members have to use the same database, because advisory locks belong to a database. If the group also leads in
  another database of the server, this is logged. If the group leads on another server, this is not detected. After a
  failover to another server, there are two locks while the old server is alive.
- A pooler that shares sessions (PgBouncer's `transaction` and `statement` modes) must not be used: the lock would
  belong to a shared session, and two processes could lead. Connect directly, or in `session` mode.
- There is a single lock for all shards, and its holder leads all shards. With a lock per shard, a process that took
  only some locks could leave shards without a leader, because the processes of a pool do not know of each other.
- A standby queries ten times a second, a leader ten times per heartbeat timeout. Each process holds a connection.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harvest_lib.clock import Deadline, boot_seconds
from harvest_lib.errors import DatabaseAccessDenied, DatabaseUnavailable, LifecycleError
from harvest_lib.leadership.last_leaders import UNKNOWN, LastLeaders, SubscriptionRows
from harvest_lib.leadership.lock_session import LockSession
from harvest_lib.leadership.protocol import Term, TermEnd
from harvest_lib.leadership.term_registry import ElectedLeadership
from harvest_lib.postgres.translation import log_denied

_log = logging.getLogger(__name__)

_STANDBY_SECONDS = 0.1
"""Least time between two attempts of a standby to take the lock. It prolongs the time without a leader."""
_WORD_SECONDS = 0.5
"""Time for which a leader that leaves in order holds the second lock, so that a standby sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresLeadershipSettings:
    """Settings of the election. Times are in seconds. `session_timeout_seconds` exceeds `heartbeat_timeout_seconds` and
    the time after which a producer's queue expires."""

    group: str
    outbox: str = ""
    """The quoted name of the outbox table; empty for a lock of the group alone. Each outbox has a lock of its own."""
    shards: int = 1
    """Number of shards. The holder of the lock leads all of them."""
    heartbeat_timeout_seconds: float = 5.0
    min_poll_interval_seconds: float = 0.1
    """Least time between two queries to Postgres."""
    session_timeout_seconds: float = 10.0
    """Time that a new holder of the lock waits. The holder does not wait if its predecessor left in order or is
    fenced."""
    quiesce_timeout_seconds: float = 5.0
    """Limit of the time that a stop waits until records in flight have landed."""
    io_error_backoff_seconds: float = 0.5
    """Pause before the next connection after an error."""


class PostgresLeadership(ElectedLeadership):
    """`Leadership` by an advisory lock of a session. The key of the lock is made of the group's name and the outbox."""

    def __init__(
        self,
        settings: PostgresLeadershipSettings,
        conninfo: str,
        clock: Callable[[], float] = boot_seconds,
        rows: SubscriptionRows | None = None,
        kafka_silent_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`rows` reads the last leaders, and whether they are fenced. Without `rows` both are unknown.
        `kafka_silent_seconds` returns, without a wait, for how long Kafka has not answered; 0 if Kafka answers."""
        super().__init__()
        self._settings = settings
        self._conninfo = conninfo
        self._clock = clock
        self._rows = rows
        self._kafka_silent_seconds = kafka_silent_seconds
        self._standby_seconds = max(settings.min_poll_interval_seconds, _STANDBY_SECONDS)
        self._proof_seconds = max(settings.min_poll_interval_seconds, settings.heartbeat_timeout_seconds / 10)
        self._complaint = self._elsewhere = ""
        self._is_cut_off = False

    def start(self) -> None:
        session = self._connect()
        ended = LifecycleError("the election ended by itself", next_step="see the log above")
        self._elect(lambda: self._run(session), "harvest-lock", ended)

    @property
    def trouble(self) -> str:
        return self._complaint

    def _connect(self) -> LockSession:
        settings = self._settings
        return LockSession(
            self._conninfo,
            settings.group,
            idle_timeout_seconds=max(1.0, settings.heartbeat_timeout_seconds),
            outbox=settings.outbox,
        )

    # Everything below runs on the election thread.

    def _run(self, session: LockSession | None) -> None:
        while not self._stopping.is_set():
            self._await_kafka()
            try:
                session = session or self._connect()
                self._complaint = ""
                self._campaign(session)
            except (DatabaseUnavailable, DatabaseAccessDenied) as error:
                self._registry.vacate(TermEnd.FENCED)
                if error.evidence != self._complaint:
                    self._complaint = error.evidence
                    if isinstance(error, DatabaseAccessDenied):
                        log_denied(error)
                    else:
                        _log.warning("election_troubled", extra={"reason": error.evidence})
                self._stopping.wait(self._settings.io_error_backoff_seconds)
            finally:
                if session is not None:
                    session.close()
                session = None

    def _campaign(self, session: LockSession) -> None:
        """Use one session to wait for the lock, hold the lock and release it."""
        while not self._stopping.is_set():
            if session.try_lock():
                self._hold(session, waits_until=self._clock() + self._settings.session_timeout_seconds)
                return
            self._stopping.wait(self._standby_seconds)

    def _hold(self, session: LockSession, waits_until: float) -> None:
        """Lead when the terms of all earlier holders of the lock are over. Return when the lock is lost or released.

        `waits_until` counts from the *answer* to the request for the lock, because the lock may have been freed just
        before that answer.
        """
        last: Sequence[Term] = ()
        since = in_doubt_until = self._clock()  # up to that time, abandoned records of a fenced term may arrive
        while not self._stopping.is_set():
            sent_at = self._clock()
            observation = session.look()
            if not observation.held:
                self._registry.vacate(TermEnd.FENCED)
                return
            self._say_elsewhere(observation.elsewhere)
            if observation.others_stand and self._finds_itself_cut_off(since):
                break
            lease_until = sent_at + self._settings.heartbeat_timeout_seconds
            for term in self._registry.terms.values():
                term.extend(lease_until)
            if over := [shard for shard, term in self._registry.terms.items() if not term.is_live()]:
                self._registry.vacate(TermEnd.FENCED, over)  # a single shard, if the harvester ended its term
                in_doubt_until = self._clock() + self._settings.session_timeout_seconds
            elif len(self._registry.terms) == self._settings.shards:
                pass
            elif observation.left_in_order:
                waits_until = sent_at  # begin when the signal is gone, or it could be taken for a later one
            else:
                before = session.last_leaders(self._rows) if self._rows is not None else UNKNOWN
                if (before.are_fenced or sent_at >= waits_until) and self._clock() < lease_until:
                    self._registry.take(*self._terms(lease_until, before))
                    last = tuple(self._registry.terms.values())
            self._stopping.wait(
                self._proof_seconds if self._registry.terms else self._settings.min_poll_interval_seconds
            )
        self._leave(session, last, in_doubt_until)

    def _say_elsewhere(self, databases: str) -> None:
        """Log in which other databases of the server the group elects leaders, once for each change."""
        if databases not in {"", self._elsewhere}:
            _log.warning(
                "group_leads_elsewhere",
                extra={
                    "group": self._settings.group,
                    "databases": databases,
                    "reason": "processes of this group elect in another database of this server too, and each database "
                    "has its own lock: each has a leader, which delivers its own outbox",
                    "next_step": "if they belong to the same pool, correct `dataSource`; if an outbox was moved, stop "
                    "the processes of its former database; else give each database a `leaderGroupID` of its own",
                },
            )
        self._elsewhere = databases or self._elsewhere

    def _finds_itself_cut_off(self, since: float) -> bool:
        """Return True if Kafka has not answered for the session timeout. The time counts only from `since`, when this
        process got the lock."""
        silent_seconds = min(self._kafka_silent_seconds(), self._clock() - since)
        if silent_seconds < self._settings.session_timeout_seconds:
            return False
        self._is_cut_off = True
        self._complaint = (
            f"Kafka has not answered this process for {silent_seconds:.0f} s, and another process stands by: this "
            "process lets go of the lock, and does not request it before Kafka answers"
        )
        _log.warning("election_troubled", extra={"reason": self._complaint})
        return True

    def _await_kafka(self) -> None:
        """If this process released the lock because Kafka did not answer, wait until Kafka answers."""
        while self._is_cut_off and self._kafka_silent_seconds() and not self._stopping.is_set():
            self._stopping.wait(self._settings.io_error_backoff_seconds)
        self._is_cut_off = False

    def _terms(self, lease_until: float, before: LastLeaders) -> tuple[Term, ...]:
        """Return new terms for the shards that have no term."""
        return tuple(
            Term(
                uuid.uuid4(),
                shard=shard,
                lease_until=lease_until,
                clock=self._clock,
                after_epoch=before.epochs.get(shard),
                fences=before.are_fenced,
            )
            for shard in range(self._settings.shards)
            if shard not in self._registry.terms
        )

    def _leave(self, session: LockSession, last: Sequence[Term], in_doubt_until: float) -> None:
        """End the terms. If this process had terms and none of its records can arrive any more, release the lock in
        order. In all other cases the lock becomes free when the caller closes the session."""
        self._registry.vacate(TermEnd.REVOKED)
        if not last:
            return  # the predecessor may still believe that it leads: the next holder of the lock has to wait too
        deadline = Deadline(self._settings.quiesce_timeout_seconds)
        while unquiet := [term for term in last if not term.quiesced.is_set()]:
            if deadline.passed:
                _log.warning("term_not_quiesced", extra={"leader_id": str(unquiet[0].leader_id)})
                return
            unquiet[0].quiesced.wait(min(self._proof_seconds, deadline.remaining_seconds))
            session.look()  # without a query the server would take this process for frozen
        if not any(term.abandoned for term in last) and self._clock() >= in_doubt_until:
            session.leave(max(_WORD_SECONDS, 2 * self._standby_seconds))
