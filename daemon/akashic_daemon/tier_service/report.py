"""The figures of the tiers as people read them, gathered from where they arise. Racy reads, good enough for people."""

from __future__ import annotations

from akashic_daemon.protocol.native import EngineStatus
from akashic_daemon.protocol.tiers import Evictions, Moved, Moves, Tier, TierReport, Wear
from akashic_daemon.schedule.counters import Counters
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.tier_service.service import TierService
from akashic_daemon.tiers.ssd import SsdStats


def report(
    tiers: TierService, loop: StepLoop, counters: Counters, ssd: SsdStats | None, hints: int, problems: list[str]
) -> TierReport:
    """Return what the tiers hold and did; `ssd` is what the disk's tier told last."""
    moves = tiers.mover.moves
    return TierReport(
        tiers=[_with_hits(tier, counters) for tier in (_gpu(loop), _ram(tiers), _ssd(tiers, ssd))],
        moves=Moves(
            demoted=Moved(blocks=moves.demoted_blocks, bytes=moves.demoted_bytes),
            promoted_from_ram=Moved(blocks=moves.promoted_ram_blocks, bytes=moves.promoted_ram_bytes),
            promoted_from_ssd=Moved(blocks=moves.promoted_ssd_blocks, bytes=moves.promoted_ssd_bytes),
            waiting_writes=tiers.mover.waiting_writes,
            prefetched_bytes=moves.prefetched_bytes,
            prefetch_used_bytes=moves.prefetch_used_bytes,
            prefetch_wasted_bytes=moves.prefetch_wasted_bytes,
        ),
        evictions=Evictions(
            gpu_tokens=loop.evicted_tokens(),
            gpu_parked_tokens=loop.tiering.parked_tokens,
            ram=Moved(blocks=moves.ram_evicted_blocks, bytes=moves.ram_evicted_bytes),
            ssd=dict(ssd.evictions) if ssd is not None else {},
            lost=dict(moves.lost_blocks),
        ),
        wear=_wear(ssd),
        staging_bytes=sum(
            pool.total_bytes for pool in (tiers.mover.outgoing, tiers.mover.incoming) if pool is not None
        ),
        reloads=counters.reloads_total,
        stall_s=counters.reload_s_total,
        hints=hints,
        hints_met=loop.tiering.hints_met,
        hints_expired=loop.tiering.hints_expired,
        problems=problems,
    )


def _with_hits(tier: Tier, counters: Counters) -> Tier:
    total, hits = counters.prompt_tokens_total, counters.reused_by_tier.get(tier.tier, 0)
    return tier.model_copy(update={"hit_tokens": hits, "hit_rate": hits / total if total else None})


def _gpu(loop: StepLoop) -> Tier:
    status = EngineStatus()
    loop.fill_status(status)
    engine = loop.engine
    if engine is None:
        return Tier(tier="gpu", is_on=False)
    used = status.kv_cells_used * status.kv_bytes // max(1, status.kv_cells_total)
    return Tier(
        tier="gpu", budget_bytes=status.kv_bytes, used_bytes=used, payload_bytes=used, tokens=status.kv_cells_used
    )


def _ram(tiers: TierService) -> Tier:
    arena = tiers.mover.arena
    budget = arena.budget_bytes or tiers.budgets.ram_bytes
    return Tier(
        tier="ram", is_on=budget > 0, budget_bytes=budget, used_bytes=arena.used_bytes,
        payload_bytes=arena.payload_bytes, blocks=arena.payloads,
    )  # fmt: skip


def _ssd(tiers: TierService, stats: SsdStats | None) -> Tier:
    is_on = tiers.budgets.ssd_bytes > 0 and tiers.mover.problem is None
    if stats is None:
        return Tier(tier="ssd", is_on=is_on, budget_bytes=tiers.budgets.ssd_bytes, blocks=0)
    return Tier(
        tier="ssd", is_on=is_on, budget_bytes=stats.budget_bytes, used_bytes=stats.used_bytes,
        payload_bytes=stats.used_bytes - stats.dead_bytes, blocks=stats.records,
    )  # fmt: skip


def _wear(ssd: SsdStats | None) -> Wear:
    if ssd is None:
        return Wear()
    return Wear(
        written_bytes=ssd.written_bytes,
        rewritten_bytes=ssd.compacted_bytes,
        read_back_bytes=ssd.read_back_bytes,
        never_read_bytes=ssd.never_read_bytes,
        evicted_unread_bytes=ssd.evicted_unread_bytes,
        day_written_bytes=ssd.day_written_bytes,
        day_budget_bytes=ssd.day_budget_bytes,
        refused={reason: count for reason, count in ssd.refusals.items() if count},
    )
