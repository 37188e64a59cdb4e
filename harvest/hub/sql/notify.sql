-- name: notify
-- Hints need no flush of the log: this transaction alone commits asynchronously.
select set_config('synchronous_commit', 'off', true), pg_notify(channel, payload) from unnest(:channels::text[], :payloads::text[]) as t(channel, payload)

-- name: ping
select 1

-- name: set_path
select set_config('search_path', :path, true)

-- name: show_path
select current_setting('search_path')
