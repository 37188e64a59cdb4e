-- table: answers

-- name: put
with old as (delete from answers where created_at < hub_now() - interval '1 minute')
insert into answers (question, body, created_at) values (:question::uuid, :body::text, hub_now())
on conflict (question) do nothing

-- name: take
delete from answers where question = :question::uuid returning body
