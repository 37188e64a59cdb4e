"""A SELECT over documents that lie in several places, as one part for each place and one over what they gave.

Sums, counts, extremes and averages travel as partial aggregates. Where an aggregate cannot be added up (count(distinct),
group_concat, median …) each place sends the values it is made of, and the final part aggregates them. What would mean
something else in each place alone (subqueries over entity, window functions, compound selects) is refused.
Runs in a child process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from .explain import FIELDS, Trouble, parse, place_of
from .wire import Plan

_ADDED = (exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg)
_MANY = {"total", "median", "percentile", "percentile_cont", "percentile_disc", "group_concat", "string_agg"}
_MANY |= {"json_group_array", "json_group_object", "jsonb_group_array", "jsonb_group_object"}


def split(sql: str) -> Plan:
    """Raises `Trouble` for what cannot be split, and says which part of it."""
    tree = parse(_named(sql))
    _check(tree, sql)
    _spell_state(tree)
    names = [_name(item) for item in tree.expressions]
    if tree.args.get("group") or tree.args.get("having") or any(_aggregates(item) for item in tree.expressions):
        return _Aggregated(tree, names).plan()
    return _plain(tree, names)


def _named(sql: str) -> str:
    """`?` and `?2` as `:p1` and `:p2`: the parts do not have them in the order of the whole."""
    try:
        tokens = sqlglot.tokenize(sql, read="sqlite")
    except sqlglot.errors.SqlglotError:
        return sql  # parsing it will say what is wrong
    pieces, at, count = [], 0, 0
    for token, follower in zip(tokens, [*tokens[1:], None], strict=True):
        if token.token_type is not TokenType.PLACEHOLDER or token.text != "?":
            continue
        end = token.end + 1
        if follower is not None and follower.start == end and follower.text.isdigit():
            count, end = int(follower.text), follower.end + 1
        else:
            count += 1
        pieces += [sql[at : token.start], f":p{count}"]
        at = end
    return "".join(pieces) + sql[at:]


def _check(tree: Any, sql: str) -> None:
    def refuse(what: str, word: str = "") -> None:
        raise Trouble(
            "refused",
            f"{what} cannot be asked over a whole type: it would see one part of it",
            *place_of(sql, word or what.split()[0]),
        )

    if isinstance(tree, exp.SetOperation):
        refuse(f"{type(tree).__name__.upper()} of selects")
    if not isinstance(tree, exp.Select):
        raise Trouble("refused", "only SELECT is answered over a whole type", 1, 1)
    if tree.args.get("with_") or tree.args.get("with"):
        refuse("WITH")
    for node in tree.walk():
        if isinstance(node, exp.Window):
            refuse("a window function", "OVER")
        inner = isinstance(node, (exp.Subquery, exp.Select, exp.Exists)) and node is not tree
        if inner and any(table.name.lower() == "entity" for table in node.find_all(exp.Table)):
            refuse("a subquery over entity", "(SELECT")
    tables = [table.name.lower() for table in tree.find_all(exp.Table) if table.name]
    if tables.count("entity") > 1:
        refuse("entity joined with itself", "entity")
    if tables.count("entity") == 0:
        raise Trouble("refused", "a query over a whole type reads FROM entity", 1, 1)


def _spell_state(tree: Any) -> None:
    """A state that is selected whole is JSON for its reader, whatever it is stored as; `*` is all columns."""
    items: list[Any] = []
    sources = tree.args.get("joins") or []
    for item in tree.expressions:
        if isinstance(item, exp.Star) and not sources:
            items += [exp.column(name) for name in FIELDS]
        elif isinstance(item, exp.Star):
            raise Trouble("refused", "SELECT * with a join: name the columns", 1, 8)
        else:
            items.append(item)
    for number, item in enumerate(items):
        bare = item.this if isinstance(item, exp.Alias) else item
        if isinstance(bare, exp.Column) and bare.name.lower() == "state":
            items[number] = exp.alias_(exp.Anonymous(this="json", expressions=[bare.copy()]), _name(item))
    tree.set("expressions", items)


def _name(item: Any) -> str:
    if isinstance(item, exp.Alias):
        return str(item.alias)
    return str(item.name) if isinstance(item, exp.Column) else str(item.sql(dialect="sqlite"))


def _aggregates(node: Any) -> list[Any]:
    """The outermost aggregate calls of an expression."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if _is_aggregate(node):
            found.append(node)
            return
        for child in node.iter_expressions():
            visit(child)

    visit(node)
    return found


def _is_aggregate(node: Any) -> bool:
    if isinstance(node, (exp.Min, exp.Max)) and node.expressions:
        return False  # of several arguments it is the scalar function
    if isinstance(node, exp.AggFunc):
        return True
    return isinstance(node, exp.Anonymous) and str(node.this).lower() in _MANY


def _wide(tree: Any) -> Any:
    """Limit and order of a part: the final part has the last word."""
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    if limit is not None:
        total = limit.expression.copy()
        if offset is not None:
            total = exp.Add(this=exp.Paren(this=total), expression=exp.Paren(this=offset.expression.copy()))
        tree.set("limit", exp.Limit(expression=total))
    tree.set("offset", None)
    return tree


def _plain(tree: Any, names: list[str]) -> Plan:
    width = len(tree.expressions)
    order, distinct = tree.args.get("order"), tree.args.get("distinct")
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    names = [_name(item) for item in tree.expressions]
    alone = order is None and distinct is None and limit is None
    final = exp.select(*(f"c{n}" for n in range(width))).from_("part")
    if distinct is not None:
        final = final.distinct()
    hidden = 0
    part = tree.copy()
    if order is not None:
        terms = []
        for term in order.expressions:
            index = _chosen(term.this, tree, names)
            if index is None:
                if distinct is not None:
                    raise Trouble("refused", "with DISTINCT, ORDER BY takes what is selected")
                part.append("expressions", term.this.copy())
                index = width + hidden
                hidden += 1
            copied = term.copy()
            copied.set("this", exp.column(f"c{index}"))
            terms.append(copied)
        final.set("order", exp.Order(expressions=terms))
        if limit is None:
            part.set("order", None)
    if limit is not None:
        final.set("limit", limit.copy())
        final.set("offset", None if offset is None else offset.copy())
    part = _wide(part)
    return Plan(_text(_numbered(part)), _text(final), width + hidden, names, alone)


def _chosen(term: Any, tree: Any, names: list[str]) -> int | None:
    """Which selected column an ORDER BY or GROUP BY term stands for, by its place, name or text."""
    if isinstance(term, exp.Literal) and not term.is_string:
        place = int(term.this)
        if not 1 <= place <= len(names):
            raise Trouble("error", f"ORDER BY {place}: there are {len(names)} columns")
        return place - 1
    text = term.sql(dialect="sqlite").lower()
    for number, item in enumerate(tree.expressions):
        bare = item.this if isinstance(item, exp.Alias) else item
        if bare.sql(dialect="sqlite").lower() == text or (isinstance(term, exp.Column) and names[number].lower() == text):
            return number
    return None


def _numbered(part: Any) -> Any:
    """Columns of a part have no names of their own: two may be called the same."""
    items = [item.this if isinstance(item, exp.Alias) else item for item in part.expressions]
    order = part.args.get("order")
    names = {item.alias.lower(): item.this for item in part.expressions if isinstance(item, exp.Alias)}
    if order is not None:
        for term in order.expressions:
            if isinstance(term.this, exp.Column) and term.this.name.lower() in names:
                term.set("this", names[term.this.name.lower()].copy())
    part.set("expressions", items)
    return part


def _text(tree: Any) -> str:
    return str(tree.sql(dialect="sqlite"))


class _Aggregated:
    """GROUP BY and aggregates: what is grouped by, then what each aggregate needs, become the columns of a part."""

    def __init__(self, tree: Any, names: list[str]) -> None:
        self.tree, self.names = tree, names
        self.columns: list[Any] = []
        self.texts: dict[str, int] = {}
        group = tree.args.get("group")
        self.groups = [self._group(term) for term in (group.expressions if group is not None else [])]
        having, order = tree.args.get("having"), tree.args.get("order")
        asked = [*tree.expressions, *([having] if having is not None else []), *([order] if order is not None else [])]
        calls = [call for item in asked for call in _aggregates(item)]
        self.added = all(self._adds(call) for call in calls)

    def _group(self, term: Any) -> Any:
        index = _chosen(term, self.tree, self.names)
        if index is None:
            return term.copy()
        item = self.tree.expressions[index]
        return (item.this if isinstance(item, exp.Alias) else item).copy()

    def _adds(self, call: Any) -> bool:
        plain = isinstance(call, _ADDED) or (isinstance(call, exp.Anonymous) and str(call.this).lower() == "total")
        return plain and call.find(exp.Distinct) is None and not isinstance(call.parent, exp.Filter)

    def column(self, expression: Any) -> Any:
        """The column of the parts that holds an expression."""
        text = _text(expression)
        if text not in self.texts:
            self.texts[text] = len(self.columns)
            self.columns.append(expression.copy())
        return exp.column(f"c{self.texts[text]}")

    def plan(self) -> Plan:
        keys = [self.column(term) for term in self.groups]
        known = {_text(term): key for term, key in zip(self.groups, keys, strict=True)}
        swap: Callable[[Any], Any] = self._sum if self.added else self._gather
        items = [exp.alias_(self._final(item, known, swap), f"n{n}") for n, item in enumerate(self.tree.expressions)]
        final = exp.select(*items).from_("part")
        if keys:
            final = final.group_by(*(key.copy() for key in keys))
        having, order = self.tree.args.get("having"), self.tree.args.get("order")
        if having is not None:
            final.set("having", exp.Having(this=self._final(having.this, known, swap)))
        if order is not None:
            final.set("order", exp.Order(expressions=[self._ordered(term, known, swap) for term in order.expressions]))
        for name in ("limit", "offset"):
            if self.tree.args.get(name) is not None:
                final.set(name, self.tree.args[name].copy())
        if self.tree.args.get("distinct") is not None:
            final = final.distinct()
        return Plan(_text(self._part()), _text(final), len(self.columns), self.names, False)

    def _part(self) -> Any:
        part = self.tree.copy()
        for name in ("having", "order", "limit", "offset", "distinct", "group"):
            part.set(name, None)
        part.set("expressions", [column.copy() for column in self.columns] or [exp.Literal.number(1)])
        if not self.columns:
            self.columns.append(exp.Literal.number(1))
        if self.added and self.groups:
            part.set("group", exp.Group(expressions=[term.copy() for term in self.groups]))
        return part

    def _ordered(self, term: Any, known: dict[str, Any], swap: Callable[[Any], Any]) -> Any:
        copied = term.copy()
        index = _chosen(term.this, self.tree, self.names)
        copied.set("this", exp.column(f"n{index}") if index is not None else self._final(term.this, known, swap))
        return copied

    def _final(self, item: Any, known: dict[str, Any], swap: Callable[[Any], Any]) -> Any:
        """An expression over the columns of the parts."""
        bare = (item.this if isinstance(item, exp.Alias) else item).copy()

        def visit(node: Any) -> Any:
            if _text(node) in known:
                return known[_text(node)].copy()
            if _is_aggregate(node) or isinstance(node, exp.Filter):
                return swap(node)
            if isinstance(node, exp.Column):
                # SQLite allows columns that are not grouped by, and takes any row's; so does the final part.
                if self.added and not self.groups:
                    raise Trouble("refused", f"{_text(node)} beside an aggregate: group by it, or take max({_text(node)})")
                return self._any(node)
            for key, value in list(node.args.items()):
                if isinstance(value, list):
                    node.set(key, [visit(v) if isinstance(v, exp.Expression) else v for v in value])
                elif isinstance(value, exp.Expression):
                    node.set(key, visit(value))
            return node

        return visit(bare)

    def _any(self, node: Any) -> Any:
        named = {name.lower(): item for name, item in zip(self.names, self.tree.expressions, strict=True)}
        item = named.get(node.name.lower())
        if item is not None and isinstance(item, exp.Alias) and _aggregates(item):
            return self._final(item, {}, self._sum if self.added else self._gather)  # HAVING n > 1 for count(*) AS n
        return self.column(node)

    def _sum(self, call: Any) -> Any:
        """An aggregate of partial aggregates."""
        if isinstance(call, exp.Avg):
            total = self.column(exp.Sum(this=call.this.copy()))
            count = self.column(exp.Count(this=call.this.copy()))
            whole = exp.Mul(this=exp.Sum(this=total), expression=exp.Literal.number("1.0"))
            return exp.Paren(this=exp.Div(this=whole, expression=exp.Sum(this=count.copy())))
        column = self.column(call)
        if isinstance(call, exp.Min):
            return exp.Min(this=column)
        if isinstance(call, exp.Max):
            return exp.Max(this=column)
        if isinstance(call, exp.Count):
            return exp.func("coalesce", exp.Sum(this=column), exp.Literal.number(0))
        if isinstance(call, exp.Sum):
            return exp.Sum(this=column)
        return exp.Anonymous(this="total", expressions=[column])

    def _gather(self, call: Any) -> Any:
        """The same aggregate, over values that the parts send as they are."""

        def visit(node: Any) -> Any:
            if isinstance(node, (exp.Star, exp.Literal, exp.Null, exp.Boolean, exp.Var)):
                return node
            if isinstance(node, (exp.AggFunc, exp.Distinct, exp.Filter, exp.Where, exp.Order, exp.Ordered)) or _is_aggregate(
                node
            ):
                for key, value in list(node.args.items()):
                    if isinstance(value, list):
                        node.set(key, [visit(v) if isinstance(v, exp.Expression) else v for v in value])
                    elif isinstance(value, exp.Expression):
                        node.set(key, visit(value))
                return node
            return self.column(node)

        return visit(call.copy())
