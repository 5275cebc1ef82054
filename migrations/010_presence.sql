-- Who is there. A member belongs to a stream; connections that stand for a member keep it there. Times hold UTC.

create table if not exists pgbus_presence_members (
  stream_name  varchar not null,
  member_id    varchar not null,
  metadata     jsonb not null default '{}',
  joined_at    timestamp(6) not null default (clock_timestamp() at time zone 'UTC'),
  last_seen_at timestamp(6) not null default (clock_timestamp() at time zone 'UTC')
);
create unique index if not exists idx_pgbus_presence_members_pk on pgbus_presence_members (stream_name, member_id);
create index if not exists idx_pgbus_presence_members_sweep on pgbus_presence_members (stream_name, last_seen_at);

create table if not exists pgbus_presence_connections (
  connection_id varchar primary key,
  stream_name   varchar not null,
  member_id     varchar not null,
  last_seen_at  timestamptz not null default clock_timestamp()
);
create index if not exists idx_pgbus_presence_connections_member on pgbus_presence_connections (stream_name, member_id);
create index if not exists idx_pgbus_presence_connections_seen on pgbus_presence_connections (last_seen_at);
