"""The only room that speaks to Postgres: one module and one `.sql` file per aggregate.

SQL is static text with `:name` parameters; `queries` loads it. `connect` opens connections,
`migrate` brings the schema forward, `commit` holds the fenced statement of the owner, `sqlstate` sorts
what Postgres complains of. Nothing outside this package imports asyncpg.
"""
