"""D-1 to D-5, as far as they are the library's own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import textwrap

import pytest
from harvest.diskcache import Cache, DirectoryBusy, Scope
from harvest.diskcache import store as store_module

SECRET = "Rumpelstiltskin"
PLACE = Scope("orders/17", 4)


def chunk(first: int, last: int) -> bytes:
    return json.dumps([{"event": n, "secret": SECRET} for n in range(first, last + 1)]).encode()


@pytest.fixture
async def cache(tmp_path):
    async with Cache(tmp_path / "c") as opened:
        yield opened


def files(cache: Cache) -> list:
    return sorted(cache.directory.glob("*.sealed"))


async def fill(cache: Cache, entry: bytes = b"run", place: Scope = PLACE) -> list[bytes]:
    chunks = [chunk(1, 100), chunk(101, 400), chunk(401, 402)]
    for data, (first, last) in zip(chunks, [(1, 100), (101, 400), (401, 402)], strict=True):
        assert await cache.append(place, entry, "history", first, last, data)
    return chunks


async def test_what_was_written_is_read(cache):
    chunks = await fill(cache)
    found = await cache.read(PLACE, b"run", "history")
    assert (found.outcome, list(found.chunks), found.last) == ("hit", chunks, 402)
    assert cache.knows(PLACE, b"run", "history") and not cache.knows(PLACE, b"other", "history")
    assert (await cache.read(PLACE, b"other", "history")).outcome == "miss"
    assert (await cache.read(PLACE, b"run", "state")).outcome == "miss"
    assert (await cache.read(Scope("orders/18", 4), b"run", "history")).outcome == "miss"
    assert cache.entries() == {PLACE: {b"run"}}


async def test_large_chunks_and_many_scopes(cache):
    large = os.urandom(3_000_000)
    await cache.append(PLACE, b"large", "history", 1, 9, large)
    assert (await cache.read(PLACE, b"large", "history")).chunks == (large,)
    places = [Scope(f"q/{n}", n) for n in range(50)]
    await asyncio.gather(*(fill(cache, b"run", place) for place in places))
    found = await asyncio.gather(*(cache.read(place, b"run", "history") for place in places))
    assert {f.outcome for f in found} == {"hit"} and len(files(cache)) == 51
    assert len(cache._open) <= store_module.OPEN_FILES


async def test_no_plaintext_reaches_the_disk(cache):
    await fill(cache)
    await cache.append(PLACE, b"small", "state", 1, 1, SECRET.encode())
    await cache.end([])
    for path in cache.directory.iterdir():
        data = path.read_bytes()
        for word in (SECRET.encode(), b"secret", b"orders", b"run", b"history"):
            assert word not in data, (path, word)
        assert path.stat().st_mode & 0o077 == 0


async def test_any_flipped_bit_is_noticed(cache, tmp_path):
    await fill(cache)
    path = files(cache)[0]
    kept = cache._scopes[PLACE.name]
    await kept.file.close()
    kept.open = False
    whole = path.read_bytes()
    dice, outcomes = random.Random(5), set()
    for _ in range(60):
        damaged = bytearray(whole)
        place = dice.randrange(len(damaged))
        damaged[place] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        found = await cache.read(PLACE, b"run", "history")
        outcomes.add(found.outcome)
        assert found.outcome in ("hit", "corrupt")
        if found.outcome == "hit":  # a byte that means nothing
            assert list(found.chunks) == [chunk(1, 100), chunk(101, 400), chunk(401, 402)]
        await cache.end([PLACE.name])
        await fill(cache)
        kept = cache._scopes[PLACE.name]
        await kept.file.close()
        kept.open = False
        path = files(cache)[0]
        whole = path.read_bytes()
    assert "corrupt" in outcomes


async def closed(cache: Cache, place: Scope):
    kept = cache._scopes[place.name]
    await kept.file.close()
    kept.open = False
    return kept.file.path


async def test_a_file_of_another_partition_or_epoch_is_not_taken(cache):
    other = Scope("orders/18", 4)
    await fill(cache)
    await cache.append(other, b"run", "history", 1, 402, chunk(1, 402))
    shutil.copy(await closed(cache, PLACE), await closed(cache, other))
    assert (await cache.read(other, b"run", "history")).outcome == "corrupt"
    assert (await cache.read(PLACE, b"run", "history")).outcome == "hit"

    before = await closed(cache, PLACE)
    stolen = before.read_bytes()
    later = Scope(PLACE.name, 5)
    await cache.append(later, b"run", "history", 1, 402, chunk(1, 402))
    assert not before.exists()
    (await closed(cache, later)).write_bytes(stolen)
    assert (await cache.read(later, b"run", "history")).outcome == "corrupt"


async def test_another_epoch_is_stale_and_the_late_one_writes_nothing(cache):
    await fill(cache)
    later = Scope(PLACE.name, 5)
    assert (await cache.read(later, b"run", "history")).outcome == "stale"
    assert (await cache.read(PLACE, b"run", "history")).outcome == "miss"
    await fill(cache, b"run", later)
    assert not await cache.append(PLACE, b"run", "history", 1, 2, b"late")
    assert (await cache.read(later, b"run", "history")).outcome == "hit"


async def test_deleted_truncated_and_foreign_files(cache):
    await fill(cache)
    files(cache)[0].unlink()
    assert (await cache.read(PLACE, b"run", "history")).outcome == "stale"
    await fill(cache)
    (await closed(cache, PLACE)).write_bytes(b"")
    assert (await cache.read(PLACE, b"run", "history")).outcome == "corrupt"
    await fill(cache)
    path = await closed(cache, PLACE)
    path.write_bytes(path.read_bytes()[:5000])
    assert (await cache.read(PLACE, b"run", "history")).outcome == "corrupt"
    await fill(cache)
    (await closed(cache, PLACE)).write_bytes(b"not a database" * 999)
    assert (await cache.read(PLACE, b"run", "history")).outcome == "corrupt"
    await fill(cache)
    assert (await cache.read(PLACE, b"run", "history")).outcome == "hit"


async def test_a_missing_chunk_is_noticed(cache):
    await fill(cache)
    kept = cache._scopes[PLACE.name]
    await kept.file._db.execute("delete from chunks where first = 101")
    assert (await cache.read(PLACE, b"run", "history")).outcome == "corrupt"
    assert not cache.knows(PLACE, b"run", "history")


async def test_a_full_disk_is_a_miss(tmp_path):
    script = textwrap.dedent("""
        import asyncio, resource, signal, sys, os
        from harvest.diskcache import Cache, Scope
        async def main():
            async with Cache(sys.argv[1]) as cache:
                place = Scope("q/1", 1)
                assert await cache.append(place, b"a", "h", 1, 1, b"x")
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
                stored = [await cache.append(place, b"b", "h", n, n, os.urandom(50_000)) for n in range(1, 9)]
                assert stored.count(False) >= 1, stored
                resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
                assert (await cache.read(place, b"a", "h")).outcome in ("miss", "hit")
            print("fine")
        asyncio.run(main())
    """)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "c")], capture_output=True, text=True, timeout=60)
    assert done.stdout == "fine\n", done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 200_000


async def test_chunks_that_do_not_follow_begin_anew(cache):
    await fill(cache)
    assert await cache.append(PLACE, b"run", "history", 900, 910, b"later")
    found = await cache.read(PLACE, b"run", "history")
    assert (found.chunks, found.last) == ((b"later",), 910)
    assert not await cache.append(PLACE, b"run", "history", 3, 2, b"nothing")


async def test_purging(cache):
    await fill(cache, b"a")
    await fill(cache, b"b")
    await cache.append(PLACE, b"a", "state", 1, 1, b"s")
    await cache.purge(PLACE, b"a", "state")
    assert (await cache.read(PLACE, b"a", "history")).outcome == "hit"
    await cache.purge(PLACE, b"a")
    assert (await cache.read(PLACE, b"a", "history")).outcome == "miss"
    assert (await cache.read(PLACE, b"b", "history")).outcome == "hit"
    await cache.end(["orders/17", "unknown"])
    assert files(cache) == [] and cache.entries() == {}


async def test_an_older_generation_is_never_read_again(cache):
    await fill(cache, b"a")
    await fill(cache, b"b")
    cache.generation = 1
    assert (await cache.read(PLACE, b"a", "history")).outcome == "stale"
    assert await cache.append(PLACE, b"a", "history", 403, 404, b"new")
    assert (await cache.read(PLACE, b"a", "history")).chunks == (b"new",)
    await cache.expire()
    assert (await cache.read(PLACE, b"a", "history")).outcome == "hit"
    cache.generation = 2
    await cache.expire()
    assert files(cache) == []


async def test_one_process_per_directory(tmp_path):
    directory = tmp_path / "c"
    script = textwrap.dedent("""
        import asyncio, sys
        from harvest.diskcache import Cache
        async def main():
            async with Cache(sys.argv[1]):
                print("open", flush=True)
                sys.stdin.readline()
        asyncio.run(main())
    """)
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(DirectoryBusy, match=f"process {holder.pid} on"):
        await Cache(directory).open()
    holder.kill()
    holder.wait()
    async with Cache(directory) as cache:  # the lock went with the process
        with pytest.raises(DirectoryBusy, match=f"process {os.getpid()}"):
            await Cache(directory).open()
        await fill(cache)
    async with Cache(directory) as cache:
        assert files(cache) == []


async def test_old_files_are_deleted_at_the_start_and_own_ones_at_the_end(tmp_path):
    directory = tmp_path / "c"
    directory.mkdir()
    (directory / "old.sealed").write_bytes(b"of a process that was killed")
    (directory / "old.sealed-journal").write_bytes(b"")
    (directory / "mine.txt").write_text("not ours")
    async with Cache(directory) as cache:
        assert files(cache) == []
        await fill(cache)
        assert len(files(cache)) == 1
    assert sorted(p.name for p in directory.iterdir()) == ["lock", "mine.txt"]
    assert not await cache.append(PLACE, b"run", "history", 1, 1, b"late")
    await cache.close()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
async def test_a_directory_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError):
        await Cache(tmp_path / "c").open()


async def test_a_path_that_is_a_file(tmp_path):
    (tmp_path / "c").write_text("")
    with pytest.raises(OSError):
        await Cache(tmp_path / "c").open()


async def test_a_tail_never_begins_an_entry(cache):
    await fill(cache)
    assert await cache.append(PLACE, b"run", "history", 403, 410, b"more", begins=False)
    assert not await cache.append(PLACE, b"run", "history", 500, 510, b"a gap", begins=False)
    assert (await cache.read(PLACE, b"run", "history")).outcome == "miss"
    assert not await cache.append(PLACE, b"run", "history", 403, 410, b"more", begins=False)
    await fill(cache)
    late = asyncio.create_task(cache.append(PLACE, b"run", "history", 403, 404, b"x" * 200_000, begins=False))
    await asyncio.sleep(0)
    await cache.end([PLACE.name])
    assert not await late
    assert (await cache.read(PLACE, b"run", "history")).outcome == "miss" and files(cache) == []
