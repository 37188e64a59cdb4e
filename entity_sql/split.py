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
from .sandbox import prepared
from .wire import Plan

_ADDED = (exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg)
_MANY = {"total", "median", "percentile", "percentile_cont", "percentile_disc", "group_concat", "string_agg"}
_MANY |= {"json_group_array", "json_group_object", "jsonb_group_array", "jsonb_group_object"}
_JOINED = ("key", "value", "type", "atom", "id", "parent", "fullkey", "path", "json", "root")
_INNER = (exp.Subquery, exp.Select, exp.Exists)
_DATES = ("DATE", "DATETIME", "TIMESTAMP", "TIME")


def split(sql: str) -> Plan:
    """Raises `Trouble` for what cannot be split, and says which part of it."""
    names = prepared(sql)  # SQLite has the first word on what is wrong with it, and on what its columns are called
    try:
        tree = _without_lambdas(parse(_spelled(sql)))
        _check(tree, sql)
        _expand(tree)
        if tree.args.get("group") or tree.args.get("having") or any(_aggregates(item) for item in tree.expressions):
            return _Aggregated(tree, names).plan()
        return _plain(tree, names)
    except RecursionError:
        raise Trouble("overrun", "the query is nested too deeply", limit="depth") from None


def _spelled(sql: str) -> str:
    """Spelled so that each part can be taken alone: `?` and `?2` are `:p1` and `:p2`, a field that is no path is one."""
    try:
        tokens = sqlglot.tokenize(sql, read="sqlite")
    except sqlglot.errors.SqlglotError as exc:
        raise Trouble("error", str(exc)) from None
    pieces, at, count = [], 0, 0
    for token, follower in zip(tokens, [*tokens[1:], None], strict=True):
        if token.token_type is TokenType.PLACEHOLDER and token.text == "?":
            end = token.end + 1
            if follower is not None and follower.start == end and follower.text.isdigit():
                count, end = int(follower.text), follower.end + 1
            else:
                count += 1
            pieces += [sql[at : token.start], f":p{count}"]
            at = end
        elif token.token_type in (TokenType.ARROW, TokenType.DARROW) and follower is not None:
            name = follower.text
            if follower.token_type is TokenType.STRING and not name.startswith("$") and not name.isidentifier():
                quoted = name.replace("'", "''").replace('"', '\\"')
                pieces += [sql[at : follower.start], f"'$.\"{quoted}\"'"]
                at = follower.end + 1
    return "".join(pieces) + sql[at:]


def _without_lambdas(tree: Any) -> Any:
    """Among the arguments of a function the parser takes `state -> '$.a'` for an anonymous function; here there are none."""
    for found in list(tree.find_all(exp.Lambda)):
        names = ", ".join(_text(name) for name in found.expressions)
        found.replace(sqlglot.parse_one(f"SELECT {names} -> {_text(found.this)}", read="sqlite").expressions[0])
    return tree


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
        _check_node(node, tree, sql, refuse)
    tables = [table.name.lower() for table in tree.find_all(exp.Table) if table.name]
    if tables.count("entity") > 1:
        refuse("entity joined with itself", "entity")
    if tables.count("entity") == 0:
        raise Trouble("refused", "a query over a whole type reads FROM entity", 1, 1)
    for join in tree.args.get("joins") or []:
        kept = isinstance(join.this, exp.Table) and join.this.name.lower() == "entity" and join.side
        if kept or join.side in ("RIGHT", "FULL"):
            refuse(f"a {join.side} JOIN that keeps rows of the other side", "JOIN")


def _check_node(node: Any, tree: Any, sql: str, refuse: Callable[..., None]) -> None:
    if isinstance(node, exp.Window):
        refuse("a window function", "OVER")
    if isinstance(node, exp.Collate):
        refuse("COLLATE")
    if isinstance(node, exp.Cast) and str(node.to).upper() in _DATES:
        refuse(f"CAST to {node.to}", "CAST")
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
        raise Trouble("refused", "name the columns instead of a table's *", *place_of(sql, "*"))
    inner = isinstance(node, _INNER) and node is not tree
    if inner and any(table.name.lower() == "entity" for table in node.find_all(exp.Table)):
        refuse("a subquery over entity", "(SELECT")


# --- one spelling for what can be said in several ways ------------------------------------------------


def _expand(tree: Any) -> None:
    """`*` becomes all columns; aliases become what they stand for; a state that is used whole becomes JSON."""
    items: list[Any] = []
    joined = bool(tree.args.get("joins"))
    for item in tree.expressions:
        if isinstance(item, exp.Star) and joined:
            raise Trouble("refused", "SELECT * with a join: name the columns", 1, 8)
        items += [exp.column(name) for name in FIELDS] if isinstance(item, exp.Star) else [item]
    tree.set("expressions", items)
    aliases = {item.alias.lower(): item.this for item in items if isinstance(item, exp.Alias)}
    real = {*FIELDS, *(_JOINED if joined else ())}
    for clause in ("where", "group", "having", "order"):
        node = tree.args.get(clause)
        if node is not None:
            tree.set(clause, _without_aliases(node, aliases, real, first=clause == "order"))
    tree.set("expressions", [item.this if isinstance(item, exp.Alias) else item for item in items])
    for column in list(tree.find_all(exp.Column)):
        if column.name.lower() == "state" and not _reads_json(column.parent):
            column.replace(exp.Anonymous(this="json", expressions=[column.copy()]))


def _without_aliases(node: Any, aliases: dict[str, Any], real: set[str], *, first: bool) -> Any:
    """In ORDER BY a whole term is an alias `first`; elsewhere a real column of the name comes before it."""

    def change(found: Any) -> Any:
        if not isinstance(found, exp.Column) or found.table or found.name.lower() not in aliases:
            return found
        whole_term = first and isinstance(found.parent, exp.Ordered)
        if found.name.lower() in real and not whole_term:
            return found
        stands_for = aliases[found.name.lower()].copy()
        return (
            stands_for
            if isinstance(stands_for, (exp.Column, exp.Func, exp.Literal)) or whole_term
            else exp.Paren(this=stands_for)
        )

    return node.transform(change)


def _reads_json(parent: Any) -> bool:
    if isinstance(parent, (exp.JSONExtract, exp.JSONExtractScalar)):
        return True
    name = str(parent.this) if isinstance(parent, exp.Anonymous) else getattr(parent, "sql_name", lambda: "")()
    return str(name).lower().startswith("json") and str(name).lower() != "json_valid"


def _bare(node: Any) -> str:
    """The text of an expression, whatever parentheses stand around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return _text(node).lower()


def _text(tree: Any) -> str:
    return str(tree.sql(dialect="sqlite"))


def _aggregates(node: Any) -> list[Any]:
    """The outermost aggregate calls of an expression; those of a subquery are its own."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if _is_aggregate(node):
            found.append(node)
        elif not isinstance(node, _INNER):
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


def _number(clause: Any) -> int | None:
    """The number that LIMIT or OFFSET gives, when it is one and not negative."""
    value = None if clause is None else clause.expression
    return int(value.this) if isinstance(value, exp.Literal) and not value.is_string and str(value.this).isdigit() else None


def _place(term: Any, items: list[Any], clause: str) -> int | None:
    """Which selected column an ORDER BY or GROUP BY term stands for, by its number or its text."""
    if isinstance(term, exp.Literal) and not term.is_string and str(term.this).isdigit():
        place = int(term.this)
        if not 1 <= place <= len(items):
            raise Trouble("error", f"{clause} {place}: there are {len(items)} columns")
        return place - 1
    text = _bare(term)
    return next((number for number, item in enumerate(items) if _bare(item) == text), None)


# --- plain selects ------------------------------------------------------------------------------------


def _plain(tree: Any, names: list[str]) -> Plan:
    items = list(tree.expressions)
    width = len(items)
    order, distinct = tree.args.get("order"), tree.args.get("distinct")
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    final = exp.select(*(f"c{n}" for n in range(width))).from_("part")
    if distinct is not None:
        final = final.distinct()
    part, hidden = tree.copy(), 0
    if order is not None:
        terms = []
        for term in order.expressions:
            index = _place(term.this, items, "ORDER BY")
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
    most, skipped = _number(limit), 0 if offset is None else _number(offset)
    part.set("offset", None)
    if most is not None and skipped is not None:
        part.set("limit", exp.Limit(expression=exp.Literal.number(most + skipped)))
    else:
        part.set("limit", None)
        part.set("order", None)
    final.set("limit", None if limit is None else limit.copy())
    final.set("offset", None if offset is None else offset.copy())
    alone = order is None and distinct is None and limit is None
    return Plan(_text(part), _text(final), width + hidden, names, alone)


# --- aggregates ---------------------------------------------------------------------------------------


class _Aggregated:
    """GROUP BY and aggregates: what is grouped by, then what each aggregate needs, become the columns of a part."""

    def __init__(self, tree: Any, names: list[str]) -> None:
        self.tree, self.names = tree, names
        self.items = list(tree.expressions)
        self.columns: list[Any] = []
        self.texts: dict[str, int] = {}
        group = tree.args.get("group")
        self.groups = [self._group(term) for term in (group.expressions if group is not None else [])]
        having, order = tree.args.get("having"), tree.args.get("order")
        asked = [*self.items, *([having] if having is not None else []), *([order] if order is not None else [])]
        self.added = all(self._adds(call) for item in asked for call in _aggregates(item))

    def _group(self, term: Any) -> Any:
        index = _place(term, self.items, "GROUP BY")
        return (term if index is None else self.items[index]).copy()

    def _adds(self, call: Any) -> bool:
        plain = isinstance(call, _ADDED) or (isinstance(call, exp.Anonymous) and str(call.this).lower() == "total")
        return plain and call.find(exp.Distinct) is None and not isinstance(call.parent, exp.Filter)

    def column(self, expression: Any) -> Any:
        """The column of the parts that holds an expression. JSON arrives as text, and is made JSON again."""
        text = _text(expression)
        if text not in self.texts:
            self.texts[text] = len(self.columns)
            self.columns.append(expression.copy())
        column = exp.column(f"c{self.texts[text]}")
        return exp.Anonymous(this="json", expressions=[column]) if _makes_json(expression) else column

    def plan(self) -> Plan:
        keys = [self.column(term) for term in self.groups]
        known = {_bare(term): key for term, key in zip(self.groups, keys, strict=True)}
        swap: Callable[[Any], Any] = self._sum if self.added else self._gather
        items = [exp.alias_(self._final(item, known, swap), f"n{n}") for n, item in enumerate(self.items)]
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
        if not self.columns:
            self.columns.append(exp.Literal.number(1))
        part = self.tree.copy()
        for name in ("having", "order", "limit", "offset", "distinct", "group"):
            part.set(name, None)
        part.set("expressions", [column.copy() for column in self.columns])
        if self.added and self.groups:
            part.set("group", exp.Group(expressions=[term.copy() for term in self.groups]))
        return part

    def _ordered(self, term: Any, known: dict[str, Any], swap: Callable[[Any], Any]) -> Any:
        copied = term.copy()
        index = _place(term.this, self.items, "ORDER BY")
        copied.set("this", exp.column(f"n{index}") if index is not None else self._final(term.this, known, swap))
        return copied

    def _final(self, item: Any, known: dict[str, Any], swap: Callable[[Any], Any]) -> Any:
        """An expression over the columns of the parts."""

        def visit(node: Any) -> Any:
            if _bare(node) in known:
                return known[_bare(node)].copy()
            if _is_aggregate(node) or isinstance(node, exp.Filter):
                return swap(node)
            if isinstance(node, (exp.Column, *_INNER)):
                # SQLite allows columns that are not grouped by, and takes any row's; so does the final part.
                if self.added and not self.groups:
                    raise Trouble("refused", f"{_text(node)} beside an aggregate: group by it, or take max({_text(node)})")
                return self.column(node)
            return _over(node, visit)

        return visit(item.copy())

    def _sum(self, call: Any) -> Any:
        """An aggregate of partial aggregates."""
        if isinstance(call, exp.Avg):
            total = self.column(exp.Anonymous(this="total", expressions=[call.this.copy()]))
            count = self.column(exp.Count(this=call.this.copy()))
            whole = exp.Anonymous(this="total", expressions=[total])
            many = exp.Anonymous(this="nullif", expressions=[exp.Sum(this=count), exp.Literal.number(0)])
            return exp.Paren(this=exp.Div(this=whole, expression=many))
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
        keeps = (exp.AggFunc, exp.Distinct, exp.Filter, exp.Where, exp.Order, exp.Ordered)

        def visit(node: Any) -> Any:
            if isinstance(node, (exp.Star, exp.Literal, exp.Null, exp.Boolean, exp.Var, exp.Placeholder, exp.Parameter)):
                return node
            return _over(node, visit) if isinstance(node, keeps) or _is_aggregate(node) else self.column(node)

        return visit(call.copy())


def _over(node: Any, visit: Callable[[Any], Any]) -> Any:
    """A node with each of its parts visited."""
    for key, value in list(node.args.items()):
        if isinstance(value, list):
            node.set(key, [visit(v) if isinstance(v, exp.Expression) else v for v in value])
        elif isinstance(value, exp.Expression):
            node.set(key, visit(value))
    return node


def _makes_json(node: Any) -> bool:
    if isinstance(node, exp.Paren):
        return _makes_json(node.this)
    if isinstance(node, exp.JSONExtract):
        return " -> " in _text(node)
    name = str(node.this).lower() if isinstance(node, exp.Anonymous) else ""
    return name in ("json", "json_array", "json_object", "json_set", "json_insert", "json_replace", "json_remove", "json_patch")
