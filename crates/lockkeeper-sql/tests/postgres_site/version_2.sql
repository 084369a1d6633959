-- Lockkeeper on PostgreSQL: tables of version 1, functions of version 2. Safe to run again.
--
-- Functions of version 1, if they are there, serve processes of older versions, which work beside newer ones.
--
-- lockkeeper_lock   one row for each lock in use; whoever changes a line updates this row first, so that
--                   changes of one line happen one after the other. `lock` is the SHA-256 of the name.
--                   `counter` is the last number given; it never falls behind the clock in milliseconds, so
--                   that it grows even if the row, the table or a failover's last commits are lost.
-- lockkeeper_claim  one row for each claim that holds or waits. `seq` is its number in line; `counter` is that of
--                   its grant, 0 until it is told. Times are microseconds since 1970 by the server's clock.
-- lockkeeper_store  one row about the store itself.

CREATE SCHEMA IF NOT EXISTS lockkeeper;

CREATE TABLE IF NOT EXISTS lockkeeper.lockkeeper_lock (
    lock bytea PRIMARY KEY,
    name text NOT NULL,
    counter bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS lockkeeper.lockkeeper_claim (
    lock bytea NOT NULL,
    seq bigint NOT NULL,
    id bytea NOT NULL,
    held boolean NOT NULL,
    counter bigint NOT NULL,
    expires bigint NOT NULL,
    since bigint NOT NULL,
    weight bigint NOT NULL,
    capacity bigint NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    owner text,
    note text,
    wake text,
    PRIMARY KEY (lock, seq)
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS lockkeeper.lockkeeper_store (
    one integer PRIMARY KEY CHECK (one = 1),
    version integer NOT NULL,
    cleaned bigint NOT NULL
);
INSERT INTO lockkeeper.lockkeeper_store VALUES (1, 1, 0) ON CONFLICT DO NOTHING;

-- Every function that is called from outside names its search path, so that nobody's objects stand in for the
-- server's own, and keeps its commit durable, whatever the session's settings are. Rows are found by their keys:
-- a plan that was made while the tables were small must not read them whole when they are large.

-- The server's clock in microseconds. clock_timestamp() moves on inside a transaction; the epoch has no time zone.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_now_2() RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- A commit of this transaction is on disk before it is told.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_durable_2() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- The one rule of who enters, for a line that is locked: let in whoever fits, first come first served, nobody
-- past the first who does not fit or who does not know yet that it is in: counters are given in the order of
-- the line. Whoever is inside stands before all who wait, so the walk ends at the first who must wait, however
-- many stand behind. The expired are forgotten when the walk meets them. Tells about the line as p_id sees it,
-- who hears of it now. Nobody is left up to the number p_from: rows that are deleted and not yet forgotten by the
-- server need not be read.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_settle_2(
    p_lock bytea, p_id bytea, p_from bigint,
    OUT now bigint, OUT in_use bigint, OUT room bigint, OUT waits boolean, OUT untold boolean,
    OUT mine bigint, OUT mine_counter bigint, OUT front bigint)
LANGUAGE plpgsql AS $$
DECLARE
    -- Before this time the room is closed. Set when lost tables are made anew, to outlast holders of the old ones.
    quiet_until CONSTANT bigint := 0;
    it record;
BEGIN
    now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    in_use := 0; room := 4294967295; waits := false; untold := false; front := 9223372036854775807;
    IF now < quiet_until THEN
        room := 0;
        front := quiet_until;
    END IF;
    FOR it IN
        SELECT c.seq, c.id, c.held, c.counter, c.expires, c.weight, c.capacity, c.wake
        FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq > p_from ORDER BY c.seq
    LOOP
        IF it.expires <= now THEN
            -- A renewal does not lock the line. Whoever is renewed at this moment survives this DELETE.
            DELETE FROM lockkeeper.lockkeeper_claim AS c
            WHERE c.lock = p_lock AND c.seq = it.seq AND c.expires <= now;
            CONTINUE WHEN FOUND;
            SELECT c.expires INTO it.expires FROM lockkeeper.lockkeeper_claim AS c
            WHERE c.lock = p_lock AND c.seq = it.seq;
            CONTINUE WHEN NOT FOUND;
        END IF;
        front := least(front, it.expires);
        IF NOT it.held THEN
            IF untold OR in_use + it.weight > least(room, it.capacity) THEN
                waits := true;
                EXIT;
            END IF;
            UPDATE lockkeeper.lockkeeper_claim AS c SET held = true, since = now
            WHERE c.lock = p_lock AND c.seq = it.seq RETURNING c.wake INTO it.wake;
            IF it.wake IS NOT NULL AND it.id <> p_id THEN
                PERFORM pg_notify(it.wake, encode(it.id, 'hex'));
            END IF;
        END IF;
        in_use := in_use + it.weight;
        room := least(room, it.capacity);
        untold := untold OR (it.counter = 0 AND it.id <> p_id);
        IF it.id = p_id THEN
            mine := it.seq;
            mine_counter := it.counter;
        END IF;
    END LOOP;
END $$;

-- The number of a claim's bell: an advisory lock of the session by which it took its place, until it leaves.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_bell_2(p_id bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT ('x' || encode(substr(p_id, 1, 8), 'hex'))::bit(64)::bigint $$;

-- Take a place, or keep it, and tell whether it is our turn. p_seq is our number in line, 0 if we do not know it, -1 if nobody has heard of us;
-- p_bell says whether this session shall hold a bell for those behind us.
-- Answers {held, counter, wanted, ahead, ahead_waiting, microseconds until somebody at the front expires, seq,
-- whether we hold our bell from now on, whether whoever stands right before us holds one, its number}.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_turn_2(
    p_lock bytea, p_id bytea, p_seq bigint, p_name text, p_ttl bigint, p_weight bigint, p_capacity bigint,
    p_patient boolean, p_host text, p_pid bigint, p_owner text, p_note text, p_wake text,
    p_bell boolean) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    number bigint;
    now bigint;
    line record;
    place bigint;
    ahead bigint;
    ahead_waiting bigint;
    fits boolean;
    told bigint;
    before bigint;
    bell boolean := false;
BEGIN
    PERFORM lockkeeper.lockkeeper_durable_2();
    -- An UPDATE lets those who meet here through one by one; an INSERT would wake all of them each time.
    UPDATE lockkeeper.lockkeeper_lock AS l
    SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.lock = p_lock RETURNING l.counter INTO number;
    IF NOT FOUND THEN
        INSERT INTO lockkeeper.lockkeeper_lock AS l
        VALUES (p_lock, p_name, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
        ON CONFLICT (lock) DO UPDATE
        SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
        RETURNING l.counter INTO number;
    END IF;
    now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    IF p_seq > 0 THEN
        -- Whoever left has let us in, and now we are told. Who has the room for itself is the first of the line.
        UPDATE lockkeeper.lockkeeper_claim AS c
        SET expires = now + p_ttl, counter = CASE c.counter WHEN 0 THEN number ELSE c.counter END, wake = p_wake
        WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id AND c.held AND c.expires > now
            AND c.weight >= c.capacity
        RETURNING c.counter INTO told;
        IF FOUND THEN
            PERFORM 1 FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq > p_seq LIMIT 1;
            RETURN ARRAY[1, told, FOUND::integer, 0, 0, 0, p_seq, 0, 0, 0];
        END IF;
    END IF;
    -- A free lock, which is what most are: nobody holds and nobody waits.
    INSERT INTO lockkeeper.lockkeeper_claim
    SELECT p_lock, number, p_id, true, number, now + p_ttl, now, p_weight, p_capacity, p_host, p_pid, p_owner,
        p_note, p_wake
    WHERE p_weight <= p_capacity AND 0 <= now
        AND NOT EXISTS (SELECT 1 FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock);
    IF FOUND THEN
        RETURN ARRAY[1, number, 0, 0, 0, 0, number, 0, 0, 0];
    END IF;
    SELECT * INTO line FROM lockkeeper.lockkeeper_settle_2(p_lock, p_id, 0);
    IF line.mine IS NOT NULL THEN
        -- Whoever left has let us in, and now we are told: of several in one room, the last told has the largest.
        IF line.mine_counter = 0 THEN
            line.mine_counter := number;
        END IF;
        UPDATE lockkeeper.lockkeeper_claim AS c
        SET expires = line.now + p_ttl, counter = line.mine_counter, wake = p_wake
        WHERE c.lock = p_lock AND c.seq = line.mine;
        RETURN ARRAY[1, line.mine_counter, line.waits::integer, 0, 0, 0, line.mine, 0, 0, 0];
    END IF;
    -- Among those who wait? Only whoever did not hear its number looks through them.
    IF p_seq > 0 THEN
        SELECT c.seq INTO place FROM lockkeeper.lockkeeper_claim AS c
        WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id AND c.expires > line.now;
    ELSIF p_seq = 0 THEN
        SELECT max(c.seq) INTO place FROM lockkeeper.lockkeeper_claim AS c
        WHERE c.lock = p_lock AND c.id = p_id AND c.expires > line.now;
    END IF;
    IF place IS NULL THEN
        DELETE FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id;
        fits := NOT line.waits AND NOT line.untold AND line.in_use + p_weight <= least(line.room, p_capacity);
        IF fits OR p_patient THEN
            INSERT INTO lockkeeper.lockkeeper_claim VALUES (
                p_lock, number, p_id, fits, CASE WHEN fits THEN number ELSE 0 END, line.now + p_ttl, line.now,
                p_weight, p_capacity, p_host, p_pid, p_owner, p_note, p_wake);
        END IF;
        IF fits THEN
            RETURN ARRAY[1, number, 0, 0, 0, 0, number, 0, 0, 0];
        END IF;
        IF p_patient AND NOT line.waits THEN
            -- The first who waits: tell those who hold.
            PERFORM pg_notify(c.wake, encode(c.id, 'hex')) FROM lockkeeper.lockkeeper_claim AS c
            WHERE c.lock = p_lock AND c.held AND c.wake IS NOT NULL;
        END IF;
        place := number;
        bell := p_bell AND p_patient;
    ELSIF p_patient THEN
        UPDATE lockkeeper.lockkeeper_claim AS c SET expires = line.now + p_ttl, wake = p_wake
        WHERE c.lock = p_lock AND c.seq = place;
    ELSE
        DELETE FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq = place;
        PERFORM lockkeeper.lockkeeper_settle_2(p_lock, p_id, 0);
    END IF;
    -- Of a long line only so much is counted while it is locked.
    SELECT count(*), count(*) FILTER (WHERE NOT a.held) INTO ahead, ahead_waiting FROM (
        SELECT c.held FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq < place
        ORDER BY c.seq DESC LIMIT 32) AS a;
    SELECT lockkeeper.lockkeeper_bell_2(c.id) INTO before FROM lockkeeper.lockkeeper_claim AS c
    WHERE c.lock = p_lock AND c.seq < place ORDER BY c.seq DESC LIMIT 1;
    -- Last, because it is not undone if this transaction is. Not if a pooler may give the session to others.
    IF bell AND coalesce(current_setting('lockkeeper.session', true), '') <> '' THEN
        bell := pg_try_advisory_lock(lockkeeper.lockkeeper_bell_2(p_id));
    ELSE
        bell := false;
    END IF;
    RETURN ARRAY[0, 0, 0, ahead, ahead_waiting, line.front - line.now, place, bell::integer,
        coalesce(NOT pg_try_advisory_xact_lock_shared(before), false)::integer, coalesce(before, 0)];
END $$;

-- Take many locks at once, those that are free. Answers the counter of each, which is its number in line as
-- well, or 0: ask by yourself. A line that somebody else is about to change is not waited for.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_turn_many_2(
    p_locks bytea[], p_ids bytea[], p_names text[], p_ttls bigint[], p_weights bigint[], p_capacities bigint[],
    p_hosts text[], p_pids bigint[], p_owners text[], p_notes text[], p_wake text) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    locked bytea[];
    now bigint;
    answer bigint[];
BEGIN
    PERFORM lockkeeper.lockkeeper_durable_2();
    -- In one order for everybody, so that no two of us wait for each other.
    INSERT INTO lockkeeper.lockkeeper_lock
    SELECT DISTINCT ON (a.lock) a.lock, a.name, 0 FROM unnest(p_locks, p_names) AS a (lock, name) ORDER BY a.lock
    ON CONFLICT DO NOTHING;
    SELECT array_agg(f.lock) INTO locked FROM (
        SELECT l.lock FROM lockkeeper.lockkeeper_lock AS l WHERE l.lock = ANY (p_locks)
        ORDER BY l.lock FOR UPDATE SKIP LOCKED) AS f;
    -- A statement of its own: it must see whatever was done before the lines were locked.
    now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    WITH asked AS (
        SELECT * FROM unnest(p_locks, p_ids, p_ttls, p_weights, p_capacities, p_hosts, p_pids, p_owners, p_notes)
            WITH ORDINALITY AS a (lock, id, ttl, weight, capacity, host, pid, owner, note, at)
    ), free AS (
        SELECT DISTINCT ON (a.lock) a.* FROM asked AS a JOIN unnest(locked) AS m (lock) ON m.lock = a.lock
        WHERE a.weight <= a.capacity AND 0 <= now
            AND NOT EXISTS (SELECT 1 FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = a.lock)
        ORDER BY a.lock, a.at
    ), numbered AS (
        UPDATE lockkeeper.lockkeeper_lock AS l SET counter = greatest(l.counter + 1, now / 1000)
        FROM free AS f WHERE l.lock = f.lock RETURNING l.lock, l.counter
    ), taken AS (
        INSERT INTO lockkeeper.lockkeeper_claim
        SELECT f.lock, n.counter, f.id, true, n.counter, now + f.ttl, now, f.weight, f.capacity, f.host, f.pid,
            f.owner, f.note, p_wake
        FROM free AS f JOIN numbered AS n ON n.lock = f.lock RETURNING id, seq
    )
    SELECT array_agg(coalesce(t.seq, 0) ORDER BY a.at) INTO answer FROM asked AS a LEFT JOIN taken AS t ON t.id = a.id;
    RETURN answer;
END $$;

-- Give up the lock, or the place, or nothing; let in whoever is next and call it. p_bell is the session that holds
-- our bell, 0 if none does: whoever stands behind us wakes, and waits for the line until this has been done.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_leave_2(p_lock bytea, p_id bytea, p_seq bigint, p_bell bigint)
RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    first bigint;
BEGIN
    PERFORM lockkeeper.lockkeeper_durable_2();
    UPDATE lockkeeper.lockkeeper_lock AS l
    SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.lock = p_lock;
    IF p_seq > 0 THEN
        -- Nobody stood before whoever had the room for itself.
        DELETE FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id
        RETURNING CASE WHEN c.held AND c.weight >= c.capacity THEN c.seq ELSE 0 END INTO first;
    ELSE
        DELETE FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.id = p_id;
    END IF;
    first := coalesce(first, 0);
    PERFORM 1 FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq > first LIMIT 1;
    IF FOUND THEN
        PERFORM lockkeeper.lockkeeper_settle_2(p_lock, p_id, first);
    END IF;
    IF p_bell = pg_backend_pid() THEN
        PERFORM pg_advisory_unlock(lockkeeper.lockkeeper_bell_2(p_id));
    END IF;
    RETURN ARRAY[]::bigint[];
END $$;

-- Wait until nobody holds this bell, for at most p_spans times the session's lock_timeout. Each span is a
-- transaction of its own: an old snapshot keeps the server from forgetting what other locks have left behind.
CREATE OR REPLACE PROCEDURE lockkeeper.lockkeeper_stand_2(p_bell bigint, p_spans integer, INOUT gone boolean)
LANGUAGE plpgsql AS $$
BEGIN
    FOR at IN 1..p_spans LOOP
        BEGIN
            PERFORM pg_catalog.pg_advisory_xact_lock_shared(p_bell);
            gone := true;
        EXCEPTION WHEN lock_not_available THEN
            gone := false;
        END;
        EXIT WHEN gone;
        COMMIT;
    END LOOP;
END $$;

-- Leave many, in one order for everybody.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_leave_many_2(
    p_locks bytea[], p_ids bytea[], p_seqs bigint[], p_bells bigint[])
RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    it record;
BEGIN
    FOR it IN SELECT * FROM unnest(p_locks, p_ids, p_seqs, p_bells) AS a (lock, id, seq, bell) ORDER BY a.lock LOOP
        PERFORM lockkeeper.lockkeeper_leave_2(it.lock, it.id, it.seq, it.bell);
    END LOOP;
    RETURN ARRAY[]::bigint[];
END $$;

-- Keep what is held, all in one statement, without locking a line. Answers for each: 0 lost, 1 held, 2 held and
-- somebody waits.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_renew_2(
    p_locks bytea[], p_ids bytea[], p_seqs bigint[], p_ttls bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    answer bigint[];
BEGIN
    PERFORM lockkeeper.lockkeeper_durable_2();
    WITH asked AS (
        SELECT * FROM unnest(p_locks, p_ids, p_seqs, p_ttls) WITH ORDINALITY AS a (lock, id, seq, ttl, at)
    ), kept AS (
        UPDATE lockkeeper.lockkeeper_claim AS c SET expires = now + a.ttl FROM asked AS a
        WHERE c.lock = a.lock AND c.seq = a.seq AND c.id = a.id AND c.held AND c.expires > now RETURNING a.at
    )
    SELECT array_agg(CASE
        WHEN k.at IS NULL THEN 0
        WHEN EXISTS (SELECT 1 FROM lockkeeper.lockkeeper_claim AS w WHERE w.lock = a.lock AND NOT w.held) THEN 2
        ELSE 1 END ORDER BY a.at)
    INTO answer FROM asked AS a LEFT JOIN kept AS k ON k.at = a.at;
    RETURN answer;
END $$;

-- What one who waits sees, without changing anything: {state, ahead_waiting, microseconds until somebody at the
-- front expires, microseconds since somebody was last let in, 0 if that one does not know it yet}.
-- State: -1 not there, 0 waiting, 1 it is time to ask.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_look_2(p_lock bytea, p_id bytea, p_seq bigint) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    waits boolean;
    next bigint;
    inside boolean;
    front bigint;
    since bigint;
    ahead_waiting bigint;
BEGIN
    SELECT NOT c.held INTO waits FROM lockkeeper.lockkeeper_claim AS c
    WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id AND c.expires > now;
    IF waits IS NULL THEN
        RETURN ARRAY[-1, 0, 0, 0];
    ELSIF NOT waits THEN
        RETURN ARRAY[1, 0, 0, 0];
    END IF;
    SELECT c.seq INTO next FROM lockkeeper.lockkeeper_claim AS c
    WHERE c.lock = p_lock AND NOT c.held ORDER BY c.seq LIMIT 1;
    SELECT coalesce(bool_or(c.held), false), min(c.expires),
        max(CASE WHEN c.counter = 0 THEN now ELSE c.since END) FILTER (WHERE c.held)
    INTO inside, front, since FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq <= next;
    SELECT count(*) INTO ahead_waiting FROM lockkeeper.lockkeeper_claim AS c
    WHERE c.lock = p_lock AND c.seq >= next AND c.seq < p_seq;
    -- Somebody at the front is gone, or nobody is inside: whoever asks sets the line in motion.
    RETURN ARRAY[(front <= now OR NOT inside)::integer, ahead_waiting, coalesce(front, now) - now,
        now - coalesce(since, now)];
END $$;

-- Keep the places of those who wait, all in one statement, without locking a line. p_wake is where they can be
-- called from now on. Answers for each what lockkeeper_look_2 does.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_keep_2(
    p_locks bytea[], p_ids bytea[], p_seqs bigint[], p_ttls bigint[], p_wakes text[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    it record;
    answer bigint[] := ARRAY[]::bigint[];
BEGIN
    PERFORM lockkeeper.lockkeeper_durable_2();
    FOR it IN
        SELECT * FROM unnest(p_locks, p_ids, p_seqs, p_ttls, p_wakes) AS a (lock, id, seq, ttl, wake)
    LOOP
        -- Whose row is locked at this moment is being let in, or removed.
        PERFORM 1 FROM lockkeeper.lockkeeper_claim AS c
        WHERE c.lock = it.lock AND c.seq = it.seq AND c.id = it.id AND NOT c.held AND c.expires > now
        FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE lockkeeper.lockkeeper_claim AS c SET expires = now + it.ttl, wake = it.wake
            WHERE c.lock = it.lock AND c.seq = it.seq;
            answer := answer || lockkeeper.lockkeeper_look_2(it.lock, it.id, it.seq);
        ELSE
            answer := answer || ARRAY[1, 0, 0, 0]::bigint[];
        END IF;
    END LOOP;
    RETURN answer;
END $$;

-- Take the lock away from its holders, for the operator. Answers who lost it.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_break_2(p_lock bytea)
RETURNS SETOF lockkeeper.lockkeeper_claim
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    it lockkeeper.lockkeeper_claim;
BEGIN
    PERFORM lockkeeper.lockkeeper_durable_2();
    UPDATE lockkeeper.lockkeeper_lock AS l
    SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.lock = p_lock;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM lockkeeper.lockkeeper_settle_2(p_lock, ''::bytea, 0);
    FOR it IN DELETE FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.held RETURNING c.* LOOP
        IF it.wake IS NOT NULL THEN
            PERFORM pg_notify(it.wake, encode(it.id, 'hex'));
        END IF;
        RETURN NEXT it;
    END LOOP;
    PERFORM lockkeeper.lockkeeper_settle_2(p_lock, ''::bytea, 0);
END $$;

-- Remove what dead processes left, of at most p_most lines, and as many lock rows that nobody has used for p_idle.
-- Does nothing if somebody cleaned less than p_every ago and found no more than that; all processes may call it.
-- Answers {claims removed, lock rows removed}.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_clean_2(p_every bigint, p_idle bigint, p_most bigint)
RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    it record;
    lines bigint := 0;
    claims bigint := 0;
    locks bigint;
BEGIN
    PERFORM 1 FROM lockkeeper.lockkeeper_store AS s WHERE s.cleaned <= now - p_every FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN ARRAY[0, 0];
    END IF;
    FOR it IN
        SELECT l.lock FROM lockkeeper.lockkeeper_lock AS l
        JOIN (SELECT DISTINCT c.lock FROM lockkeeper.lockkeeper_claim AS c WHERE c.expires <= now LIMIT p_most) AS s
        ON s.lock = l.lock ORDER BY l.lock FOR UPDATE OF l SKIP LOCKED
    LOOP
        DELETE FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = it.lock AND c.expires <= now;
        GET DIAGNOSTICS locks = ROW_COUNT;
        claims := claims + locks;
        lines := lines + 1;
        PERFORM lockkeeper.lockkeeper_settle_2(it.lock, ''::bytea, 0);
    END LOOP;
    -- A turn that takes such a row at this moment gives it a present counter, and the row is then spared.
    DELETE FROM lockkeeper.lockkeeper_lock AS d USING (
        SELECT l.lock FROM lockkeeper.lockkeeper_lock AS l
        WHERE l.counter < (now - p_idle) / 1000
            AND NOT EXISTS (SELECT 1 FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = l.lock)
        LIMIT p_most FOR UPDATE SKIP LOCKED) AS idle
    WHERE d.lock = idle.lock;
    GET DIAGNOSTICS locks = ROW_COUNT;
    -- Where more is left, the next one goes on at once.
    IF lines < p_most AND locks < p_most THEN
        UPDATE lockkeeper.lockkeeper_store SET cleaned = now;
    END IF;
    RETURN ARRAY[claims, locks];
END $$;
