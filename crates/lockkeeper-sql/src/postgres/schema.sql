-- Lockkeeper on PostgreSQL: tables of version 1, functions of version 3. Safe to run again.
--
-- Functions of versions 1 and 2, if they are there, serve processes of older versions, which work beside newer ones.
--
-- lockkeeper_lock   one row for each lock in use; whoever changes a line updates this row first, so that
--                   changes of one line happen one after the other. `lock` is the SHA-256 of the name.
--                   `counter` is the last number given; it never falls behind the clock in milliseconds, so
--                   that it grows even if the row, the table or a failover's last commits are lost.
-- lockkeeper_claim  one row for each claim that holds or waits. `seq` is its number in line; `counter` is that of
--                   its grant, 0 while it waits. Times are microseconds since 1970 by the server's clock.
-- lockkeeper_store  one row about the store itself.

CREATE SCHEMA IF NOT EXISTS @SCHEMA@;

CREATE TABLE IF NOT EXISTS @SCHEMA@.lockkeeper_lock (
    lock bytea PRIMARY KEY,
    name text NOT NULL,
    counter bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS @SCHEMA@.lockkeeper_claim (
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

CREATE TABLE IF NOT EXISTS @SCHEMA@.lockkeeper_store (
    one integer PRIMARY KEY CHECK (one = 1),
    version integer NOT NULL,
    cleaned bigint NOT NULL
);
INSERT INTO @SCHEMA@.lockkeeper_store VALUES (1, 1, 0) ON CONFLICT DO NOTHING;

-- A function that is called from outside names its search path, so that nobody's objects stand in for the server's
-- own, and keeps its commit durable, whatever the session's settings are. Rows are found by their keys: a plan that was
-- made while the tables were small must not read them whole when they are large. Turn and leave, the most frequent,
-- rely on the settings of the session instead, which cost nothing; where a pooler may have given us anybody's session,
-- they are called together with lockkeeper_settings_3.

-- The server's clock in microseconds. clock_timestamp() moves on inside a transaction; the epoch has no time zone.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_now_3() RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- A commit of this transaction is on disk before it is told.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_durable_3() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- What turn and leave rely on, for this transaction, in a session that is not ours.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_settings_3() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    PERFORM pg_catalog.set_config('enable_seqscan', 'off', true);
    PERFORM @SCHEMA@.lockkeeper_durable_3();
END $$;

-- The one rule of who enters, for a line that is locked: let in whoever fits, first come first served, nobody past the
-- first who does not fit. All who fit together enter together; their counters are p_number and those after it, in the
-- order of the line, and `next` is the first that is left. Whoever is inside stands before all who wait, so the walk
-- ends at the first who must wait, however many stand behind. The expired are forgotten when the walk meets them.
-- Nobody is left up to the number p_from: rows that are deleted and not yet forgotten by the server need not be read.
-- Tells about the line as p_id sees it, who hears of it now.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_settle_3(
    p_lock bytea, p_id bytea, p_from bigint, p_number bigint,
    OUT now bigint, OUT in_use bigint, OUT room bigint, OUT waits boolean,
    OUT mine bigint, OUT mine_counter bigint, OUT front bigint, OUT next bigint)
LANGUAGE plpgsql AS $$
DECLARE
    -- Before this time the room is closed. Set when lost tables are made anew, to outlast holders of the old ones.
    quiet_until CONSTANT bigint := @QUIET@;
    it record;
BEGIN
    now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    in_use := 0; room := 4294967295; waits := false; front := 9223372036854775807; next := p_number;
    IF now < quiet_until THEN
        room := 0;
        front := quiet_until;
    END IF;
    FOR it IN
        SELECT c.seq, c.id, c.held, c.counter, c.expires, c.weight, c.capacity, c.wake
        FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq > p_from ORDER BY c.seq
    LOOP
        IF it.expires <= now THEN
            -- A renewal does not lock the line. Whoever is renewed at this moment survives this DELETE.
            DELETE FROM @SCHEMA@.lockkeeper_claim AS c
            WHERE c.lock = p_lock AND c.seq = it.seq AND c.expires <= now;
            CONTINUE WHEN FOUND;
            SELECT c.expires INTO it.expires FROM @SCHEMA@.lockkeeper_claim AS c
            WHERE c.lock = p_lock AND c.seq = it.seq;
            CONTINUE WHEN NOT FOUND;
        END IF;
        front := least(front, it.expires);
        IF NOT it.held AND in_use + it.weight > least(room, it.capacity) THEN
            waits := true;
            EXIT;
        END IF;
        -- Functions of version 2 let in without a counter.
        IF NOT it.held OR it.counter = 0 THEN
            UPDATE @SCHEMA@.lockkeeper_claim AS c SET held = true, counter = next, since = now
            WHERE c.lock = p_lock AND c.seq = it.seq RETURNING c.counter, c.wake INTO it.counter, it.wake;
            next := next + 1;
            IF it.wake IS NOT NULL AND it.id <> p_id THEN
                PERFORM pg_notify(it.wake, encode(it.id, 'hex'));
            END IF;
        END IF;
        in_use := in_use + it.weight;
        room := least(room, it.capacity);
        IF it.id = p_id THEN
            mine := it.seq;
            mine_counter := it.counter;
        END IF;
    END LOOP;
END $$;

-- The same where it is plain: somebody has just left an open room empty, and p_seq, who is next, wants it for itself. False if
-- it is not so plain.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_let_in_3(p_lock bytea, p_seq bigint, p_number bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    who bytea;
    at text;
BEGIN
    UPDATE @SCHEMA@.lockkeeper_claim AS c SET held = true, counter = p_number, since = now
    WHERE c.lock = p_lock AND c.seq = p_seq AND NOT c.held AND c.expires > now AND c.weight = c.capacity
    RETURNING c.id, c.wake INTO who, at;
    IF at IS NOT NULL THEN
        PERFORM pg_notify(at, encode(who, 'hex'));
    END IF;
    RETURN who IS NOT NULL;
END $$;

-- The number of a claim's bell: an advisory lock of the session by which it took its place, until it leaves.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_bell_3(p_id bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT ('x' || encode(substr(p_id, 1, 8), 'hex'))::bit(64)::bigint $$;

-- How the line stands before one who waits at p_place, without changing it. p_bell says whether this session shall hold
-- its bell for those behind it. Answers as turn does.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_behind_3(
    p_lock bytea, p_id bytea, p_place bigint, p_weight bigint, p_capacity bigint, p_front bigint, p_bell boolean)
RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ahead bigint;
    ahead_waiting bigint;
    before bigint;
    bell boolean := false;
BEGIN
    -- Of a long line only so much is counted while it is locked.
    SELECT count(*), count(*) FILTER (WHERE NOT a.held AND a.weight + p_weight > least(a.capacity, p_capacity))
    INTO ahead, ahead_waiting FROM (
        SELECT c.held, c.weight, c.capacity FROM @SCHEMA@.lockkeeper_claim AS c
        WHERE c.lock = p_lock AND c.seq < p_place ORDER BY c.seq DESC LIMIT 32) AS a;
    SELECT @SCHEMA@.lockkeeper_bell_3(c.id) INTO before FROM @SCHEMA@.lockkeeper_claim AS c
    WHERE c.lock = p_lock AND c.seq < p_place AND c.weight + p_weight > least(c.capacity, p_capacity)
    ORDER BY c.seq DESC LIMIT 1;
    -- Last, because it is not undone if this transaction is. Not if a pooler may give the session to others.
    IF p_bell AND coalesce(current_setting('lockkeeper.session', true), '') <> '' THEN
        bell := pg_try_advisory_lock(@SCHEMA@.lockkeeper_bell_3(p_id));
    END IF;
    RETURN ARRAY[0, 0, 0, ahead, ahead_waiting, p_front, p_place, bell::integer,
        coalesce(NOT pg_try_advisory_xact_lock_shared(before), false)::integer, coalesce(before, 0)];
END $$;

-- What turn does if the lock is not free. The line is locked; p_number is the number that it reached by that.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_queue_3(
    p_lock bytea, p_id bytea, p_seq bigint, p_ttl bigint, p_weight bigint, p_capacity bigint,
    p_patient boolean, p_host text, p_pid bigint, p_owner text, p_note text, p_wake text,
    p_bell boolean, p_number bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    now bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    number bigint := p_number;
    last record;
    line record;
    front bigint;
    fits boolean := false;
    place bigint;
BEGIN
    SELECT c.id, c.held, c.expires, c.weight, c.capacity, c.wake INTO last
    FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock ORDER BY c.seq DESC LIMIT 1;
    IF p_seq < 0 AND last.id <> p_id AND last.expires > now AND (NOT last.held OR last.weight >= last.capacity) THEN
        -- Nobody passes one who waits, nor enters beside one who has the room for itself: those before need no look.
        front := last.expires;
        IF last.held AND p_patient AND last.wake IS NOT NULL THEN
            -- The first who waits: tell the one who holds.
            PERFORM pg_notify(last.wake, encode(last.id, 'hex'));
        END IF;
    ELSE
        SELECT * INTO line FROM @SCHEMA@.lockkeeper_settle_3(p_lock, p_id, 0, number);
        IF line.next > number THEN
            number := line.next;
            UPDATE @SCHEMA@.lockkeeper_lock AS l SET counter = number WHERE l.lock = p_lock;
        END IF;
        now := line.now;
        front := line.front;
        IF line.mine IS NOT NULL THEN
            UPDATE @SCHEMA@.lockkeeper_claim AS c SET expires = now + p_ttl, wake = p_wake
            WHERE c.lock = p_lock AND c.seq = line.mine;
            RETURN ARRAY[1, line.mine_counter, line.waits::integer, 0, 0, 0, line.mine, 0, 0, 0];
        END IF;
        -- Among those who wait? Only whoever did not hear its number looks through them.
        IF p_seq > 0 THEN
            SELECT c.seq INTO place FROM @SCHEMA@.lockkeeper_claim AS c
            WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id AND c.expires > now;
        ELSIF p_seq = 0 THEN
            SELECT max(c.seq) INTO place FROM @SCHEMA@.lockkeeper_claim AS c
            WHERE c.lock = p_lock AND c.id = p_id AND c.expires > now;
        END IF;
        IF place IS NULL THEN
            DELETE FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id;
            fits := NOT line.waits AND line.in_use + p_weight <= least(line.room, p_capacity);
            IF p_patient AND NOT fits AND NOT line.waits THEN
                PERFORM pg_notify(c.wake, encode(c.id, 'hex')) FROM @SCHEMA@.lockkeeper_claim AS c
                WHERE c.lock = p_lock AND c.held AND c.wake IS NOT NULL;
            END IF;
        END IF;
    END IF;
    IF place IS NULL AND (fits OR p_patient) THEN
        INSERT INTO @SCHEMA@.lockkeeper_claim VALUES (
            p_lock, number, p_id, fits, CASE WHEN fits THEN number ELSE 0 END, now + p_ttl, now,
            p_weight, p_capacity, p_host, p_pid, p_owner, p_note, p_wake);
        IF fits THEN
            RETURN ARRAY[1, number, 0, 0, 0, 0, number, 0, 0, 0];
        END IF;
    ELSIF p_patient THEN
        UPDATE @SCHEMA@.lockkeeper_claim AS c SET expires = now + p_ttl, wake = p_wake
        WHERE c.lock = p_lock AND c.seq = place;
    ELSIF place IS NOT NULL THEN
        DELETE FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq = place;
        SELECT s.next INTO number FROM @SCHEMA@.lockkeeper_settle_3(p_lock, p_id, 0, number + 1) AS s;
        UPDATE @SCHEMA@.lockkeeper_lock AS l SET counter = number WHERE l.lock = p_lock;
    END IF;
    RETURN @SCHEMA@.lockkeeper_behind_3(p_lock, p_id, coalesce(place, number), p_weight, p_capacity, front - now,
        p_bell AND p_patient AND place IS NULL);
END $$;

-- Tell one at p_seq that it was let in, and whether somebody waits. Whoever waits stands behind all who hold, so that the
-- last of the line knows.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_inside_3(p_lock bytea, p_seq bigint, p_counter bigint, p_left bigint)
RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    wanted boolean;
BEGIN
    SELECT NOT c.held INTO wanted FROM @SCHEMA@.lockkeeper_claim AS c
    WHERE c.lock = p_lock ORDER BY c.seq DESC LIMIT 1;
    IF NOT coalesce(wanted, false) THEN
        -- Or is somebody about to stand behind us, who has locked the line and is not seen yet?
        PERFORM 1 FROM @SCHEMA@.lockkeeper_lock AS l WHERE l.lock = p_lock AND l.xmax <> '0'::xid;
        wanted := FOUND;
    END IF;
    RETURN ARRAY[1, p_counter, wanted::integer, 0, 0, p_left, p_seq, 0, 0, 0];
END $$;

-- Take a place, or keep it, and tell whether it is our turn. p_seq is our number in line, 0 if we do not know it, -1
-- if nobody has heard of us; p_bell says whether this session shall hold a bell for those behind us.
-- Answers {held, counter, wanted, ahead, of them those who wait and do not fit beside us, microseconds until somebody
-- at the front expires or, if held, for which it is (0: for the ttl), seq, whether we hold our bell from now on, whether the last before us that does not fit beside
-- us holds one, its number}.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_turn_3(
    p_lock bytea, p_id bytea, p_seq bigint, p_name text, p_ttl bigint, p_weight bigint, p_capacity bigint,
    p_patient boolean, p_host text, p_pid bigint, p_owner text, p_note text, p_wake text,
    p_bell boolean) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    now bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    number bigint;
    inside boolean;
    told bigint;
    until bigint;
    heard text;
BEGIN
    IF p_seq > 0 AND p_patient THEN
        -- Whoever left has let us in: what it has written is on disk, and is enough. Nothing is locked or written.
        SELECT c.counter, c.expires INTO told, until FROM @SCHEMA@.lockkeeper_claim AS c
        WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id AND c.held AND c.counter <> 0
            AND now + p_ttl / 6 * 5 <= c.expires AND c.wake IS NOT DISTINCT FROM p_wake;
        IF FOUND THEN
            RETURN @SCHEMA@.lockkeeper_inside_3(p_lock, p_seq, told, until - now);
        END IF;
        -- Or it is about to: then it has locked our row, and this waits for it. The line is not locked, as it is not by a
        -- renewal.
        SELECT c.held, c.counter, c.expires, c.wake INTO inside, told, until, heard
        FROM @SCHEMA@.lockkeeper_claim AS c
        WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id AND c.expires > now FOR NO KEY UPDATE;
        IF inside AND told <> 0 AND now + p_ttl / 6 * 5 <= until AND heard IS NOT DISTINCT FROM p_wake THEN
            -- As above: nothing is to be waited for.
            heard := set_config('synchronous_commit', 'off', true);
        ELSIF inside IS NOT NULL THEN
            until := now + p_ttl;
            UPDATE @SCHEMA@.lockkeeper_claim AS c SET expires = until, wake = p_wake
            WHERE c.lock = p_lock AND c.seq = p_seq;
        END IF;
        IF inside AND told <> 0 THEN
            RETURN @SCHEMA@.lockkeeper_inside_3(p_lock, p_seq, told, until - now);
        ELSIF inside IS NOT NULL THEN
            -- Our row is locked, so nobody who has locked the line may be waited for: it may want our row.
            PERFORM 1 FROM @SCHEMA@.lockkeeper_lock AS l WHERE l.lock = p_lock FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN @SCHEMA@.lockkeeper_behind_3(p_lock, p_id, p_seq, p_weight, p_capacity, 5000, false);
            END IF;
        END IF;
    END IF;
    -- An UPDATE lets those who meet here through one by one; an INSERT would wake all of them each time.
    UPDATE @SCHEMA@.lockkeeper_lock AS l
    SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.lock = p_lock RETURNING l.counter INTO number;
    IF NOT FOUND THEN
        INSERT INTO @SCHEMA@.lockkeeper_lock AS l
        VALUES (p_lock, p_name, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
        ON CONFLICT (lock) DO UPDATE
        SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
        RETURNING l.counter INTO number;
    END IF;
    now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    -- A free lock, which is what most are: nobody holds and nobody waits. Looked at from the end, where a line that
    -- moves has no rows that are deleted and not yet forgotten by the server.
    INSERT INTO @SCHEMA@.lockkeeper_claim
    SELECT p_lock, number, p_id, true, number, now + p_ttl, now, p_weight, p_capacity, p_host, p_pid, p_owner,
        p_note, p_wake
    WHERE p_weight <= p_capacity AND @QUIET@ <= now
        AND (SELECT c.seq FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock
             ORDER BY c.seq DESC LIMIT 1) IS NULL;
    IF FOUND THEN
        RETURN ARRAY[1, number, 0, 0, 0, 0, number, 0, 0, 0];
    END IF;
    RETURN @SCHEMA@.lockkeeper_queue_3(p_lock, p_id, p_seq, p_ttl, p_weight, p_capacity, p_patient, p_host, p_pid,
        p_owner, p_note, p_wake, p_bell, number);
END $$;

-- Take many locks at once, those that are free. Answers the counter of each, which is its number in line as
-- well, or 0: ask by yourself. A line that somebody else is about to change is not waited for.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_turn_many_3(
    p_locks bytea[], p_ids bytea[], p_names text[], p_ttls bigint[], p_weights bigint[], p_capacities bigint[],
    p_hosts text[], p_pids bigint[], p_owners text[], p_notes text[], p_wake text) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    locked bytea[];
    now bigint;
    answer bigint[];
BEGIN
    PERFORM @SCHEMA@.lockkeeper_durable_3();
    -- In one order for everybody, so that no two of us wait for each other.
    INSERT INTO @SCHEMA@.lockkeeper_lock
    SELECT DISTINCT ON (a.lock) a.lock, a.name, 0 FROM unnest(p_locks, p_names) AS a (lock, name) ORDER BY a.lock
    ON CONFLICT DO NOTHING;
    SELECT array_agg(f.lock) INTO locked FROM (
        SELECT l.lock FROM @SCHEMA@.lockkeeper_lock AS l WHERE l.lock = ANY (p_locks)
        ORDER BY l.lock FOR UPDATE SKIP LOCKED) AS f;
    -- A statement of its own: it must see whatever was done before the lines were locked.
    now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    WITH asked AS (
        SELECT * FROM unnest(p_locks, p_ids, p_ttls, p_weights, p_capacities, p_hosts, p_pids, p_owners, p_notes)
            WITH ORDINALITY AS a (lock, id, ttl, weight, capacity, host, pid, owner, note, at)
    ), free AS (
        SELECT DISTINCT ON (a.lock) a.* FROM asked AS a JOIN unnest(locked) AS m (lock) ON m.lock = a.lock
        WHERE a.weight <= a.capacity AND @QUIET@ <= now
            AND NOT EXISTS (SELECT 1 FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = a.lock)
        ORDER BY a.lock, a.at
    ), numbered AS (
        UPDATE @SCHEMA@.lockkeeper_lock AS l SET counter = greatest(l.counter + 1, now / 1000)
        FROM free AS f WHERE l.lock = f.lock RETURNING l.lock, l.counter
    ), taken AS (
        INSERT INTO @SCHEMA@.lockkeeper_claim
        SELECT f.lock, n.counter, f.id, true, n.counter, now + f.ttl, now, f.weight, f.capacity, f.host, f.pid,
            f.owner, f.note, p_wake
        FROM free AS f JOIN numbered AS n ON n.lock = f.lock RETURNING id, seq
    )
    SELECT array_agg(coalesce(t.seq, 0) ORDER BY a.at) INTO answer FROM asked AS a LEFT JOIN taken AS t ON t.id = a.id;
    RETURN answer;
END $$;

-- Give up the lock, or the place, or nothing; let in all who are next and call them. p_bell is the session that holds
-- our bell, 0 if none does: whoever stands behind us wakes, and waits for its row until this has been done.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_leave_3(p_lock bytea, p_id bytea, p_seq bigint, p_bell bigint)
RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
    first bigint;
    next bigint;
    durable text;
    silent boolean;
BEGIN
    UPDATE @SCHEMA@.lockkeeper_lock AS l
    SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.lock = p_lock RETURNING l.counter INTO number;
    number := coalesce(number, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    IF p_seq > 0 THEN
        -- Nobody stood before whoever had the room for itself.
        DELETE FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id
        RETURNING CASE WHEN c.held AND c.weight >= c.capacity THEN c.seq ELSE 0 END, (
            SELECT n.seq FROM @SCHEMA@.lockkeeper_claim AS n WHERE n.lock = p_lock AND n.seq > p_seq
            ORDER BY n.seq LIMIT 1) INTO first, next;
    ELSE
        DELETE FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.id = p_id;
    END IF;
    first := coalesce(first, 0);
    IF first = 0 THEN
        SELECT c.seq INTO next FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock ORDER BY c.seq LIMIT 1;
    END IF;
    IF next IS NULL THEN
        -- Nobody is let in: if a crash undoes this, the lock is free when its time is over. It need not be on disk.
        durable := set_config('synchronous_commit', 'off', true);
    ELSIF first = 0 OR NOT @SCHEMA@.lockkeeper_let_in_3(p_lock, next, number) THEN
        SELECT s.next INTO next FROM @SCHEMA@.lockkeeper_settle_3(p_lock, p_id, first, number) AS s;
        IF next > number + 1 THEN
            UPDATE @SCHEMA@.lockkeeper_lock AS l SET counter = next - 1 WHERE l.lock = p_lock;
        END IF;
    END IF;
    IF p_bell = pg_backend_pid() THEN
        silent := pg_advisory_unlock(@SCHEMA@.lockkeeper_bell_3(p_id));
    END IF;
    RETURN ARRAY[]::bigint[];
END $$;

-- Leave many, in one order for everybody.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_leave_many_3(
    p_locks bytea[], p_ids bytea[], p_seqs bigint[], p_bells bigint[])
RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    durable CONSTANT text := current_setting('synchronous_commit');
    it record;
BEGIN
    FOR it IN SELECT * FROM unnest(p_locks, p_ids, p_seqs, p_bells) AS a (lock, id, seq, bell) ORDER BY a.lock LOOP
        PERFORM @SCHEMA@.lockkeeper_leave_3(it.lock, it.id, it.seq, it.bell);
    END LOOP;
    -- Some of them may have let somebody in.
    PERFORM set_config('synchronous_commit', durable, true);
    RETURN ARRAY[]::bigint[];
END $$;

-- Hold less of the room from now on, where we stand: let in all who fit beside us now, and call them. Never acquires.
-- Answers {1}, or {0} if it is not held by this claim.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_lower_3(
    p_lock bytea, p_id bytea, p_seq bigint, p_weight bigint, p_capacity bigint) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    number bigint;
    after bigint;
BEGIN
    PERFORM @SCHEMA@.lockkeeper_durable_3();
    UPDATE @SCHEMA@.lockkeeper_lock AS l
    SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.lock = p_lock RETURNING l.counter INTO number;
    UPDATE @SCHEMA@.lockkeeper_claim AS c SET weight = p_weight, capacity = p_capacity
    WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id AND c.held
        AND c.expires > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    IF NOT FOUND THEN
        RETURN ARRAY[0];
    END IF;
    SELECT s.next INTO after FROM @SCHEMA@.lockkeeper_settle_3(p_lock, p_id, 0, number) AS s;
    IF after > number + 1 THEN
        UPDATE @SCHEMA@.lockkeeper_lock AS l SET counter = after - 1 WHERE l.lock = p_lock;
    END IF;
    RETURN ARRAY[1];
END $$;
