"""Who has a stream open is asked about with all others: viewers cost the hub nothing each."""

from __future__ import annotations

import asyncio

from harvest.hub import tokens as stored
from harvest.operations import tokens
from harvest.server.standing import Standing


async def test_one_statement_answers_for_all_and_a_change_is_asked_about_anew(door, monkeypatch):
    made = [tokens.digest((await door.tokens.create(f"t{n}", scopes=["read"])).secret) for n in range(5)]
    asked: list[int] = []
    holds = stored.holds

    async def counting(db, token_ids):
        asked.append(len(token_ids))
        return await holds(db, token_ids)

    monkeypatch.setattr(stored, "holds", counting)
    standing = Standing(door.site)
    assert all(await asyncio.gather(*(standing.holds(each) for each in made * 10)))
    assert asked == [5]
    assert await standing.holds(made[0]) and asked == [5]
    await door.tokens.revoke("t0")
    standing.forget()
    assert not await standing.holds(made[0])
    assert all(await asyncio.gather(*(standing.holds(each) for each in made[1:])))
    assert asked == [5, 5]
    assert not await standing.holds(None)  # there are tokens: nobody is in without one any more


async def test_who_asks_while_others_are_being_asked_about_is_not_sent_away(door, monkeypatch):
    turns = [asyncio.Event(), asyncio.Event()]
    entered: asyncio.Queue[int] = asyncio.Queue()
    left = iter(range(2))

    async def configured(site):
        mine = next(left)
        entered.put_nowait(mine)
        await turns[mine].wait()
        return False

    monkeypatch.setattr(tokens, "configured", configured)
    standing = Standing(door.site)
    first = asyncio.create_task(standing.holds(None))
    await entered.get()
    standing.forget()  # the hub came back
    second = asyncio.create_task(standing.holds(None))
    turns[0].set()
    await entered.get()  # the second read is under way
    assert await first
    turns[1].set()
    assert await second
