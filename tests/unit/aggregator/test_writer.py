"""What is acknowledged is on disk: not before, and not while the disk is full."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypervisor.aggregator.store import EventQuery
from tests.fleet import messages as m
from tests.unit.aggregator.parts import FakeContext, Parts


def test_nothing_is_acknowledged_while_the_disk_is_full(tmp_path: Path) -> None:
    async def main() -> None:
        parts = Parts(tmp_path)
        context = FakeContext(
            m.hello("a").SerializeToString(),
            m.snapshot(m.revision(1, 1), m.state("a")).SerializeToString(),
            m.events(*(m.event("a", 1, number) for number in range(1, 200))).SerializeToString(),
            keep_open=True,
        )
        stream = asyncio.ensure_future(parts.reports.report(None, context))  # type: ignore[arg-type]
        await context.all_read.wait()
        assert [r.WhichOneof("content") for r in context.written] == ["welcome"]
        pages = parts.store._writer.execute("PRAGMA page_count").fetchone()[0]
        parts.store._writer.execute(f"PRAGMA max_page_count={pages}")
        pauses = [await parts.writer.step() for _ in range(6)]
        assert pauses == sorted(pauses)
        assert pauses[-1] > pauses[0]
        assert pauses[-1] <= 5
        assert "full" in parts.writer.failing
        await asyncio.sleep(0)
        assert [r.WhichOneof("content") for r in context.written] == ["welcome"]
        # Queries are answered all the same.
        assert len(parts.registry.gpus) == 8
        parts.store._writer.execute("PRAGMA max_page_count=1000000")
        assert await parts.writer.step() == 0.2
        await asyncio.sleep(0)
        assert parts.writer.failing == ""
        ack = context.written[-1].ack
        assert (ack.revision.epoch, ack.revision.revision) == (1, 1)
        assert (ack.event_epoch, ack.event_sequence) == (1, 199)
        assert len(parts.store.read_events(EventQuery(limit=1000))) == 199
        context.end()
        await stream
        await parts.writer.close()

    asyncio.run(main())


def test_acks_are_coalesced(tmp_path: Path) -> None:
    async def main() -> None:
        parts = Parts(tmp_path)
        context = FakeContext(
            m.hello("a").SerializeToString(),
            *(
                m.snapshot(
                    m.revision(1, number), m.state("a", gpus=[m.gpu("a", 0, available_tflops=number)])
                ).SerializeToString()
                for number in range(1, 21)
            ),
            keep_open=True,
        )
        stream = asyncio.ensure_future(parts.reports.report(None, context))  # type: ignore[arg-type]
        await context.all_read.wait()
        await parts.writer.step()
        await asyncio.sleep(0)
        acks = [r.ack for r in context.written if r.HasField("ack")]
        assert [ack.revision.revision for ack in acks] == [20]
        context.end()
        await stream
        await parts.writer.close()

    asyncio.run(main())


def test_old_events_go_and_the_newest_stay(tmp_path: Path) -> None:
    async def main() -> None:
        parts = Parts(tmp_path, event_retention_count=10)
        await parts.send(
            m.hello("a").SerializeToString(),
            m.events(*(m.event("a", 1, number) for number in range(1, 101))).SerializeToString(),
        )
        await parts.writer.step()
        kept = [stored.row.sequence for stored in parts.store.read_events(EventQuery(limit=1000))]
        assert kept == list(range(91, 101))
        await parts.writer.close()

    asyncio.run(main())
