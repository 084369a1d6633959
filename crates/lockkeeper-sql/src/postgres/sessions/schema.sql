-- Lockkeeper on PostgreSQL, `mode=session`: version 101. Safe to run again.
--
-- A lock is an advisory lock of a session; nothing is written when it is taken or given back. These tables say which
-- number stands for which name, whose session it is, and what must outlive a restart.
--
-- lockkeeper_store           its version tells programs of the other mode that this schema is not theirs.
-- lockkeeper_session_store   until when nobody is let in, because a server that forgot its sessions has started.
-- lockkeeper_session_member  one row for each open session, on disk before it takes a lock: how long its locks may be
--                            believed in after the server is gone. It holds the advisory lock (this table, number).
-- lockkeeper_session_epoch   the server as it runs. Unlogged: a crash or a promotion empties it, by which we know.
-- lockkeeper_session_name    which number stands for a name: two names never have the same. Unlogged: a server that
--                            forgets it has forgotten all locks. A lock is the advisory lock (this table, number).
-- lockkeeper_session_note    owners and notes of those who have one, with fence and time; unlogged.
-- lockkeeper_session_broken  which sessions shall give which lock back, because an operator says so; unlogged.

CREATE SCHEMA IF NOT EXISTS @SCHEMA@;

CREATE TABLE IF NOT EXISTS @SCHEMA@.lockkeeper_store (
    one integer PRIMARY KEY CHECK (one = 1),
    version integer NOT NULL,
    cleaned bigint NOT NULL
);
INSERT INTO @SCHEMA@.lockkeeper_store VALUES (1, 101, 0) ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS @SCHEMA@.lockkeeper_session_store (
    one integer PRIMARY KEY CHECK (one = 1),
    quiet bigint NOT NULL,
    quiet_until bigint NOT NULL
);
INSERT INTO @SCHEMA@.lockkeeper_session_store VALUES (1, 0, 0) ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS @SCHEMA@.lockkeeper_session_member (
    number bigint PRIMARY KEY,
    ttl bigint NOT NULL,
    backend integer NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL
);

CREATE UNLOGGED TABLE IF NOT EXISTS @SCHEMA@.lockkeeper_session_epoch (
    one integer PRIMARY KEY CHECK (one = 1),
    started timestamptz NOT NULL
);

CREATE UNLOGGED TABLE IF NOT EXISTS @SCHEMA@.lockkeeper_session_name (
    lock bytea PRIMARY KEY,
    number bigint NOT NULL UNIQUE,
    name text NOT NULL,
    born bigint NOT NULL
);

CREATE UNLOGGED TABLE IF NOT EXISTS @SCHEMA@.lockkeeper_session_note (
    number bigint NOT NULL,
    backend integer NOT NULL,
    counter bigint NOT NULL,
    since bigint NOT NULL,
    owner text,
    note text,
    PRIMARY KEY (number, backend)
) WITH (fillfactor = 50);

CREATE UNLOGGED TABLE IF NOT EXISTS @SCHEMA@.lockkeeper_session_broken (
    number bigint NOT NULL,
    backend integer NOT NULL,
    PRIMARY KEY (backend, number)
);

-- Fences: one number for all names, called while the lock is ours. No caching, so that numbers come in order.
CREATE SEQUENCE IF NOT EXISTS @SCHEMA@.lockkeeper_session_counter AS bigint MINVALUE 1 MAXVALUE 281474976710655 CACHE 1;
CREATE SEQUENCE IF NOT EXISTS @SCHEMA@.lockkeeper_session_number AS bigint MINVALUE 1 MAXVALUE 2147483647 CYCLE CACHE 1;

-- The first of the two numbers of our advisory locks: a table's, which no other table of the database has.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_session_class_1(p_table text) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT (CASE WHEN o.id > 2147483647 THEN o.id - 4294967296 ELSE o.id END)::integer
    FROM (SELECT to_regclass('@SCHEMA@.' || p_table)::oid::bigint AS id) AS o
$$;

-- A session begins: it is a member, on disk, before it takes a lock. The first one on a server that has started, or
-- was promoted, closes the room for as long as members of the server before may believe in their locks, and raises the
-- fences above all that were given and not heard of here.
-- Answers {class of names, microseconds for which nobody is let in, the server's clock, number}.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_session_join_1(p_ttl bigint, p_host text, p_pid bigint)
RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    members CONSTANT integer := @SCHEMA@.lockkeeper_session_class_1('lockkeeper_session_member');
    began timestamptz;
    own bigint;
    store record;
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT e.started INTO began FROM @SCHEMA@.lockkeeper_session_epoch AS e WHERE e.one = 1;
    IF began IS DISTINCT FROM pg_postmaster_start_time() THEN
        PERFORM 1 FROM @SCHEMA@.lockkeeper_session_store AS s WHERE s.one = 1 FOR UPDATE;
        -- Or has somebody seen to it while we waited?
        SELECT e.started INTO began FROM @SCHEMA@.lockkeeper_session_epoch AS e WHERE e.one = 1;
        IF began IS DISTINCT FROM pg_postmaster_start_time() THEN
            UPDATE @SCHEMA@.lockkeeper_session_store AS s SET quiet = l.longest, quiet_until = now + l.longest
            FROM (SELECT greatest(
                (SELECT coalesce(max(m.ttl), 0) FROM @SCHEMA@.lockkeeper_session_member AS m),
                -- A room that was still closed.
                (SELECT CASE WHEN o.quiet_until > now THEN o.quiet ELSE 0 END
                 FROM @SCHEMA@.lockkeeper_session_store AS o WHERE o.one = 1)) AS longest) AS l
            WHERE s.one = 1;
            DELETE FROM @SCHEMA@.lockkeeper_session_member;
            PERFORM setval('@SCHEMA@.lockkeeper_session_counter',
                greatest(nextval('@SCHEMA@.lockkeeper_session_counter') + 1048576, now / 1000));
            INSERT INTO @SCHEMA@.lockkeeper_session_epoch VALUES (1, pg_postmaster_start_time())
            ON CONFLICT (one) DO UPDATE SET started = excluded.started;
        END IF;
    END IF;
    own := nextval('@SCHEMA@.lockkeeper_session_number');
    PERFORM pg_advisory_lock(members, own::integer);
    INSERT INTO @SCHEMA@.lockkeeper_session_member VALUES (own, p_ttl, pg_backend_pid(), p_host, p_pid);
    -- Some of those who have gone: nobody holds their number.
    DELETE FROM @SCHEMA@.lockkeeper_session_member AS m USING (
        SELECT o.number FROM (
            SELECT a.number FROM @SCHEMA@.lockkeeper_session_member AS a WHERE a.number <> own
            ORDER BY random() LIMIT 20) AS o
        WHERE pg_try_advisory_xact_lock(members, o.number::integer)) AS gone
    WHERE m.number = gone.number;
    DELETE FROM @SCHEMA@.lockkeeper_session_note AS n WHERE n.backend = pg_backend_pid();
    DELETE FROM @SCHEMA@.lockkeeper_session_broken AS b WHERE b.backend = pg_backend_pid();
    SELECT * INTO store FROM @SCHEMA@.lockkeeper_session_store AS s WHERE s.one = 1;
    RETURN ARRAY[@SCHEMA@.lockkeeper_session_class_1('lockkeeper_session_name'),
        greatest(store.quiet_until - now, 0), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, own];
END $$;

-- Take a lock for this session if it is free; or, if p_wait, when it is. The session must not have it already.
-- Answers {fence's counter or 0, number of the name, the server's clock when it was granted, whether it was waited for}.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_session_take_1(
    p_class integer, p_lock bytea, p_name text, p_wait boolean, p_owner text, p_note text) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
    now bigint;
    counter bigint;
    waited boolean := false;
BEGIN
    LOOP
        SELECT n.number INTO own FROM @SCHEMA@.lockkeeper_session_name AS n WHERE n.lock = p_lock;
        IF NOT FOUND THEN
            INSERT INTO @SCHEMA@.lockkeeper_session_name VALUES (
                p_lock, nextval('@SCHEMA@.lockkeeper_session_number'), p_name,
                (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
            ON CONFLICT DO NOTHING;
            CONTINUE;
        END IF;
        IF NOT pg_try_advisory_lock(p_class, own::integer) THEN
            IF NOT p_wait THEN
                RETURN ARRAY[0, own, 0, 0];
            END IF;
            waited := true;
            PERFORM pg_advisory_lock(p_class, own::integer);
        END IF;
        -- The cleaner removes a name while it holds its lock: is it still this number's?
        PERFORM 1 FROM @SCHEMA@.lockkeeper_session_name AS n WHERE n.lock = p_lock AND n.number = own;
        EXIT WHEN FOUND;
        PERFORM pg_advisory_unlock(p_class, own::integer);
    END LOOP;
    now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    counter := nextval('@SCHEMA@.lockkeeper_session_counter');
    IF p_owner IS NOT NULL OR p_note IS NOT NULL THEN
        INSERT INTO @SCHEMA@.lockkeeper_session_note VALUES (own, pg_backend_pid(), counter, now, p_owner, p_note)
        ON CONFLICT (number, backend) DO UPDATE
        SET counter = excluded.counter, since = excluded.since, owner = excluded.owner, note = excluded.note;
    END IF;
    RETURN ARRAY[counter, own, now, waited::integer];
END $$;

-- Give a lock back, with its note.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_session_leave_1(p_class integer, p_number bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM @SCHEMA@.lockkeeper_session_note AS n WHERE n.number = p_number AND n.backend = pg_backend_pid();
    RETURN pg_advisory_unlock(p_class, p_number::integer);
END $$;

-- Give back whatever a take did whose answer is not known.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_session_undo_1(p_class integer, p_lock bytea) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
BEGIN
    SELECT n.number INTO own FROM @SCHEMA@.lockkeeper_session_name AS n WHERE n.lock = p_lock;
    IF EXISTS (SELECT 1 FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid()
        AND l.classid::bigint = p_class::bigint & 4294967295 AND l.objid::bigint = own AND l.objsubid = 2 AND l.granted)
    THEN
        PERFORM @SCHEMA@.lockkeeper_session_leave_1(p_class, own);
    END IF;
END $$;

-- The beat of a session. Answers {the server's clock, how many numbers are waited for, those, numbers that this session
-- shall give back}.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_session_beat_1(p_class integer) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    waited bigint[] := ARRAY[]::bigint[];
    broken bigint[];
BEGIN
    -- The table of all locks is long; it is read only if somebody waits for an advisory lock at all.
    IF EXISTS (SELECT 1 FROM pg_stat_get_activity(NULL) AS a WHERE a.wait_event_type = 'Lock' AND a.wait_event = 'advisory')
    THEN
        SELECT coalesce(array_agg(DISTINCT l.objid::bigint), waited) INTO waited FROM pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.classid::bigint = p_class::bigint & 4294967295 AND l.objsubid = 2
            AND NOT l.granted;
    END IF;
    SELECT coalesce(array_agg(b.number), ARRAY[]::bigint[]) INTO broken
    FROM @SCHEMA@.lockkeeper_session_broken AS b WHERE b.backend = pg_backend_pid();
    RETURN ARRAY[(extract(epoch FROM clock_timestamp()) * 1000000)::bigint, cardinality(waited)] || waited || broken;
END $$;

-- Remove names that are old and that nobody holds or waits for. Whoever comes next gives them another number. What is held
-- becomes young again before that: whoever knows its number need not look for long, and a session, which is let in to what it
-- has itself, removes none of its own. Nothing is taken by this session while it cleans.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_session_clean_3(p_class integer, p_idle bigint, p_most bigint)
RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = on AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    removed bigint;
BEGIN
    UPDATE @SCHEMA@.lockkeeper_session_name AS n SET born = now
    FROM (SELECT DISTINCT l.objid::bigint AS number FROM pg_locks AS l WHERE l.locktype = 'advisory'
        AND l.classid::bigint = p_class::bigint & 4294967295 AND l.objsubid = 2 AND l.granted) AS held
    WHERE n.number = held.number AND n.born <= now - p_idle / 2;
    DELETE FROM @SCHEMA@.lockkeeper_session_name AS n USING (
        SELECT o.lock FROM (
            SELECT a.lock, a.number FROM @SCHEMA@.lockkeeper_session_name AS a WHERE a.born <= now - p_idle
            LIMIT p_most) AS o
        WHERE pg_try_advisory_xact_lock(p_class, o.number::integer)) AS idle
    -- It may have become young since it was found.
    WHERE n.lock = idle.lock AND n.born <= now - p_idle;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;

-- For programs that know only these names. They once removed what the session that cleans had itself.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_session_clean_2(p_class integer, p_idle bigint, p_most bigint)
RETURNS bigint
LANGUAGE sql AS $$ SELECT @SCHEMA@.lockkeeper_session_clean_3(p_class, p_idle, p_most) $$;
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_session_clean_1(p_class integer, p_idle bigint, p_most bigint)
RETURNS bigint
LANGUAGE sql AS $$ SELECT @SCHEMA@.lockkeeper_session_clean_3(p_class, p_idle, p_most) $$;
