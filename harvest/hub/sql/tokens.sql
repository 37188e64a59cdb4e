-- table: tokens

-- name: create
insert into tokens (token_id, name, hash, scopes, created_at, created_by, expires_at)
values (:token_id::uuid, :name, :hash::bytea, :scopes::text[], hub_now(), :created_by, hub_now() + :lifetime::float8 * interval '1 second')
on conflict (name) do nothing
returning token_id, name, scopes, created_at, created_by, expires_at, rotated_at, previous_until, revoked_at, used_at

-- name: rotate
-- The old secret holds for a grace, so that callers can be moved over one by one.
update tokens set hash = :hash::bytea, previous_hash = hash, previous_until = hub_now() + :grace::float8 * interval '1 second',
  rotated_at = hub_now(), expires_at = case when :lifetime::float8 is null then expires_at else hub_now() + :lifetime * interval '1 second' end
where name = :name and revoked_at is null
returning token_id, name, scopes, created_at, created_by, expires_at, rotated_at, previous_until, revoked_at, used_at

-- name: revoke
update tokens set revoked_at = coalesce(revoked_at, hub_now()) where name = :name
returning token_id, name, scopes, created_at, created_by, expires_at, rotated_at, previous_until, revoked_at, used_at

-- name: listing
select token_id, name, scopes, created_at, created_by, expires_at, rotated_at, previous_until, revoked_at, used_at from tokens order by name

-- name: any
-- A hub that ever had a token is closed: revoking the last one opens nothing.
select exists (select from tokens) as configured

-- name: valid
-- `until` is when it ends to be valid, null for never.
select token_id, name, scopes,
  case when hash = :hash::bytea then expires_at else least(expires_at, previous_until) end as until
from tokens
where (hash = :hash or (previous_hash = :hash and previous_until > hub_now()))
  and revoked_at is null and (expires_at is null or expires_at > hub_now())

-- name: holds
select given.hash from unnest(:hashes::bytea[]) as given(hash) join tokens t
  on t.hash = given.hash or (t.previous_hash = given.hash and t.previous_until > hub_now())
where t.revoked_at is null and (t.expires_at is null or t.expires_at > hub_now())

-- name: used
-- To the minute, so that it costs next to nothing.
update tokens set used_at = hub_now() where token_id = :token_id::uuid and (used_at is null or used_at < hub_now() - interval '1 minute')
