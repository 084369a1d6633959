-- Lockkeeper on PostgreSQL, schema version 1. Safe to run again.
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
) WITH (fillfactor = 70);

CREATE TABLE IF NOT EXISTS lockkeeper.lockkeeper_store (
    one integer PRIMARY KEY CHECK (one = 1),
    version integer NOT NULL,
    cleaned bigint NOT NULL
);
INSERT INTO lockkeeper.lockkeeper_store VALUES (1, 1, 0) ON CONFLICT DO NOTHING;

-- The server's clock in microseconds. clock_timestamp() moves on inside a transaction; the epoch has no time zone.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_now_1() RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Lock a line for the rest of the transaction and give its next number; NULL if there is no such line.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_open_1(p_lock bytea) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    UPDATE lockkeeper.lockkeeper_lock AS l
    SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.lock = p_lock RETURNING l.counter INTO number;
    RETURN number;
END $$;

-- The one rule of who enters, for a line that is locked: forget the expired, then let in whoever fits, first
-- come first served, nobody past the first who does not fit or who does not know yet that it is in: counters
-- are given in the order of the line. Tells about the line as p_id sees it, who hears of it now.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_settle_1(
    p_lock bytea, p_id bytea,
    OUT now bigint, OUT in_use bigint, OUT room bigint, OUT waiting bigint, OUT untold boolean,
    OUT mine bigint, OUT mine_held boolean, OUT mine_counter bigint,
    OUT ahead bigint, OUT ahead_waiting bigint, OUT ahead_expires bigint)
LANGUAGE plpgsql AS $$
DECLARE
    -- Before this time the room is closed. Set when lost tables are made anew: old holders must learn of it first.
    quiet_until CONSTANT bigint := 0;
    it record;
BEGIN
    now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    in_use := 0; room := 4294967295; waiting := 0; untold := false; mine_held := false;
    ahead := 0; ahead_waiting := 0; ahead_expires := 9223372036854775807;
    IF now < quiet_until THEN
        room := 0;
        ahead_expires := quiet_until;
    END IF;
    -- A renewal does not lock the line. Whoever is renewed at this moment survives this DELETE, and the loop
    -- below, which looks afterwards, counts it.
    DELETE FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.expires <= now;
    FOR it IN
        SELECT c.seq, c.id, c.held, c.counter, c.expires, c.weight, c.capacity, c.wake
        FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock ORDER BY c.seq
    LOOP
        IF NOT it.held AND waiting = 0 AND NOT untold AND in_use + it.weight <= least(room, it.capacity) THEN
            it.held := true;
            UPDATE lockkeeper.lockkeeper_claim AS c SET held = true, since = now
            WHERE c.lock = p_lock AND c.seq = it.seq;
            IF it.wake IS NOT NULL AND it.id <> p_id THEN
                PERFORM pg_notify(it.wake, encode(it.id, 'hex'));
            END IF;
        END IF;
        IF it.held THEN
            in_use := in_use + it.weight;
            room := least(room, it.capacity);
            untold := untold OR (it.counter = 0 AND it.id <> p_id);
        ELSE
            waiting := waiting + 1;
        END IF;
        IF it.id = p_id THEN
            mine := it.seq;
            mine_held := it.held;
            mine_counter := it.counter;
        ELSIF mine IS NULL THEN
            ahead := ahead + 1;
            ahead_expires := least(ahead_expires, it.expires);
            IF NOT it.held THEN ahead_waiting := ahead_waiting + 1; END IF;
        END IF;
    END LOOP;
END $$;

-- Take a place, or keep it, and tell whether it is our turn.
-- Answers {held, counter, wanted, ahead, ahead_waiting, microseconds until somebody ahead expires}.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_turn_1(
    p_lock bytea, p_id bytea, p_name text, p_ttl bigint, p_weight bigint, p_capacity bigint, p_patient boolean,
    p_host text, p_pid bigint, p_owner text, p_note text, p_wake text) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
    now bigint;
    line record;
    fits boolean;
BEGIN
    INSERT INTO lockkeeper.lockkeeper_lock AS l
    VALUES (p_lock, p_name, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    ON CONFLICT (lock) DO UPDATE
    SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    RETURNING l.counter INTO number;
    -- A free lock, which is what most are: nobody holds and nobody waits.
    now := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    INSERT INTO lockkeeper.lockkeeper_claim
    SELECT p_lock, number, p_id, true, number, now + p_ttl, now, p_weight, p_capacity, p_host, p_pid, p_owner,
        p_note, p_wake
    WHERE p_weight <= p_capacity AND 0 <= now
        AND NOT EXISTS (SELECT 1 FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock);
    IF FOUND THEN
        RETURN ARRAY[1, number, 0, 0, 0, 0];
    END IF;
    SELECT * INTO line FROM lockkeeper.lockkeeper_settle_1(p_lock, p_id);
    IF line.mine IS NULL THEN
        fits := line.waiting = 0 AND NOT line.untold AND line.in_use + p_weight <= least(line.room, p_capacity);
        IF fits OR p_patient THEN
            INSERT INTO lockkeeper.lockkeeper_claim VALUES (
                p_lock, number, p_id, fits, CASE WHEN fits THEN number ELSE 0 END, line.now + p_ttl, line.now,
                p_weight, p_capacity, p_host, p_pid, p_owner, p_note, p_wake);
        END IF;
        line.mine_held := fits;
        line.mine_counter := number;
        IF p_patient AND NOT fits AND line.waiting = 0 THEN
            -- The first who waits: tell those who hold.
            PERFORM pg_notify(c.wake, encode(c.id, 'hex')) FROM lockkeeper.lockkeeper_claim AS c
            WHERE c.lock = p_lock AND c.held AND c.wake IS NOT NULL;
        END IF;
    ELSIF line.mine_held OR p_patient THEN
        -- Whoever left has let us in, and now we are told: of several in one room, the last told has the largest.
        IF line.mine_held AND line.mine_counter = 0 THEN
            line.mine_counter := number;
        END IF;
        UPDATE lockkeeper.lockkeeper_claim AS c
        SET expires = line.now + p_ttl, counter = line.mine_counter, wake = p_wake
        WHERE c.lock = p_lock AND c.seq = line.mine;
    ELSE
        DELETE FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq = line.mine;
        PERFORM lockkeeper.lockkeeper_settle_1(p_lock, p_id);
    END IF;
    RETURN ARRAY[line.mine_held::integer, line.mine_counter, (line.waiting > 0)::integer, line.ahead,
        line.ahead_waiting, line.ahead_expires - line.now];
END $$;

-- Give up the lock, or the place, or nothing; let in whoever is next and call it.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_leave_1(p_lock bytea, p_id bytea) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE lockkeeper.lockkeeper_lock AS l
    SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.lock = p_lock;
    DELETE FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.id = p_id;
    PERFORM 1 FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock LIMIT 1;
    IF FOUND THEN
        PERFORM lockkeeper.lockkeeper_settle_1(p_lock, p_id);
    END IF;
    RETURN ARRAY[]::bigint[];
END $$;

-- Keep what is held, all in one statement. Answers for each: 0 lost, 1 held, 2 held and somebody waits.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_renew_1(p_locks bytea[], p_ids bytea[], p_ttls bigint[])
RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    answer bigint[];
BEGIN
    WITH asked AS (
        SELECT * FROM unnest(p_locks, p_ids, p_ttls) WITH ORDINALITY AS a (lock, id, ttl, at)
    ), kept AS (
        UPDATE lockkeeper.lockkeeper_claim AS c SET expires = now + a.ttl FROM asked AS a
        WHERE c.lock = a.lock AND c.id = a.id AND c.held AND c.expires > now RETURNING a.at
    )
    SELECT array_agg(CASE
        WHEN k.at IS NULL THEN 0
        WHEN EXISTS (SELECT 1 FROM lockkeeper.lockkeeper_claim AS w WHERE w.lock = a.lock AND NOT w.held) THEN 2
        ELSE 1 END ORDER BY a.at)
    INTO answer FROM asked AS a LEFT JOIN kept AS k ON k.at = a.at;
    RETURN answer;
END $$;

-- Look without changing anything, for those who cannot be called: {my state, ahead_waiting, microseconds until
-- somebody ahead expires}. My state: -1 not there, 0 waiting, 1 held.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_look_1(p_lock bytea, p_id bytea) RETURNS bigint[]
LANGUAGE sql VOLATILE AS $$
    SELECT ARRAY[coalesce(max(m.held::integer), -1),
        count(*) FILTER (WHERE NOT c.held AND c.seq < m.seq),
        coalesce(min(c.expires) FILTER (WHERE c.seq < m.seq), 9223372036854775807)
            - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint]
    FROM lockkeeper.lockkeeper_claim AS c
    LEFT JOIN lockkeeper.lockkeeper_claim AS m ON m.lock = c.lock AND m.id = p_id
    WHERE c.lock = p_lock
$$;

-- Take the lock away from its holders, for the operator. Answers who lost it.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_break_1(p_lock bytea)
RETURNS SETOF lockkeeper.lockkeeper_claim
LANGUAGE plpgsql AS $$
DECLARE
    it lockkeeper.lockkeeper_claim;
BEGIN
    IF lockkeeper.lockkeeper_open_1(p_lock) IS NULL THEN
        RETURN;
    END IF;
    PERFORM lockkeeper.lockkeeper_settle_1(p_lock, ''::bytea);
    FOR it IN DELETE FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.held RETURNING c.* LOOP
        IF it.wake IS NOT NULL THEN
            PERFORM pg_notify(it.wake, encode(it.id, 'hex'));
        END IF;
        RETURN NEXT it;
    END LOOP;
    PERFORM lockkeeper.lockkeeper_settle_1(p_lock, ''::bytea);
END $$;

-- Remove what dead processes left, and lock rows that nobody has used for p_idle. Does nothing if somebody
-- cleaned less than p_every ago; all processes may call it. Answers {claims removed, lock rows removed}.
CREATE OR REPLACE FUNCTION lockkeeper.lockkeeper_clean_1(p_every bigint, p_idle bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    it record;
    claims bigint := 0;
    locks bigint;
BEGIN
    PERFORM 1 FROM lockkeeper.lockkeeper_store AS s WHERE s.cleaned <= now - p_every FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN ARRAY[0, 0];
    END IF;
    UPDATE lockkeeper.lockkeeper_store SET cleaned = now;
    FOR it IN
        SELECT l.lock, s.stale FROM lockkeeper.lockkeeper_lock AS l
        JOIN (SELECT c.lock, count(*) AS stale FROM lockkeeper.lockkeeper_claim AS c WHERE c.expires <= now
              GROUP BY c.lock LIMIT 1000) AS s ON s.lock = l.lock
        FOR UPDATE OF l SKIP LOCKED
    LOOP
        PERFORM lockkeeper.lockkeeper_open_1(it.lock);
        PERFORM lockkeeper.lockkeeper_settle_1(it.lock, ''::bytea);
        claims := claims + it.stale;
    END LOOP;
    -- A turn that takes such a row at this moment gives it a present counter, and the row is then spared.
    DELETE FROM lockkeeper.lockkeeper_lock AS d USING (
        SELECT l.lock FROM lockkeeper.lockkeeper_lock AS l
        WHERE l.counter < (now - p_idle) / 1000
            AND NOT EXISTS (SELECT 1 FROM lockkeeper.lockkeeper_claim AS c WHERE c.lock = l.lock)
        LIMIT 10000 FOR UPDATE SKIP LOCKED) AS idle
    WHERE d.lock = idle.lock;
    GET DIAGNOSTICS locks = ROW_COUNT;
    RETURN ARRAY[claims, locks];
END $$;
