-- The logical handle: attempts of one logical run, pauses, forks, and what operators note of a run.

-- retry: the policy given at the start; chain_deadline bounds all attempts together, since chain_began (null: its own beginning);
-- backoff is how long an attempt had to wait, paused_for how long its clocks stood still; reset_of_exec_id and reset_decision say where a forked run's history comes from.
alter table executions
  add column retry            json,
  add column chain_deadline   timestamptz,
  add column chain_began      timestamptz,
  add column backoff          interval not null default '0',
  add column paused_at        timestamptz,
  add column paused_for       interval not null default '0',
  add column reset_of_exec_id uuid,
  add column reset_decision   int,
  add column rerun_of_exec_id uuid,
  add column legal_hold       json,
  add column erased_at        timestamptz;

-- The next attempt of a failed run (L-9): there is one at most, and finding none costs one descent.
create unique index executions_retries on executions (retry_of_exec_id) include (execution_id)
  where retry_of_exec_id is not null;
create index executions_continued_from on executions (continued_from) where continued_from is not null;
create index executions_resets on executions (reset_of_exec_id) where reset_of_exec_id is not null;
create index executions_reruns on executions (rerun_of_exec_id) where rerun_of_exec_id is not null;

-- A paused task is nobody's; paused_due is when it would have been due.
alter table workflow_tasks add column paused_due timestamptz;

-- Post-mortem notes of people.
create table triage (
  note_id      uuid primary key,
  execution_id uuid not null,
  at           timestamptz not null,
  author       text not null,
  status       text not null,
  note         text not null
);
create index triage_execution on triage (execution_id, at);

create index dead_letters_at on dead_letters (at desc, execution_id desc);
