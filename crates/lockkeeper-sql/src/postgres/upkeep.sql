
-- Waiting, keeping, looking, and what operators and the cleaner do: the rest of the functions.

-- Wait until nobody holds this bell, for at most p_spans times the session's lock_timeout. Each span is a
-- transaction of its own: an old snapshot keeps the server from forgetting what other locks have left behind.
CREATE OR REPLACE PROCEDURE @SCHEMA@.lockkeeper_stand_3(p_bell bigint, p_spans integer, INOUT gone boolean)
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

-- Keep what is held, all in one statement, without locking a line. Answers for each: 0 lost, 1 held, 2 held and
-- somebody waits.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_renew_3(
    p_locks bytea[], p_ids bytea[], p_seqs bigint[], p_ttls bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    answer bigint[];
BEGIN
    PERFORM @SCHEMA@.lockkeeper_durable_3();
    WITH asked AS (
        SELECT * FROM unnest(p_locks, p_ids, p_seqs, p_ttls) WITH ORDINALITY AS a (lock, id, seq, ttl, at)
    ), kept AS (
        UPDATE @SCHEMA@.lockkeeper_claim AS c SET expires = now + a.ttl FROM asked AS a
        WHERE c.lock = a.lock AND c.seq = a.seq AND c.id = a.id AND c.held AND c.expires > now RETURNING a.at
    )
    SELECT array_agg(CASE
        WHEN k.at IS NULL THEN 0
        WHEN EXISTS (SELECT 1 FROM @SCHEMA@.lockkeeper_claim AS w WHERE w.lock = a.lock AND NOT w.held) THEN 2
        ELSE 1 END ORDER BY a.at)
    INTO answer FROM asked AS a LEFT JOIN kept AS k ON k.at = a.at;
    RETURN answer;
END $$;

-- A holder can be called there from now on. The line is locked: whoever begins to wait at this moment has seen where, or is
-- seen. Answers as renew does. If a crash undoes it, the connection by which it was said is gone as well.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_hear_3(p_lock bytea, p_id bytea, p_seq bigint, p_wake text)
RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    unflushed text;
BEGIN
    unflushed := set_config('synchronous_commit', 'off', true);
    PERFORM 1 FROM @SCHEMA@.lockkeeper_lock AS l WHERE l.lock = p_lock FOR UPDATE;
    UPDATE @SCHEMA@.lockkeeper_claim AS c SET wake = p_wake
    WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id AND c.held;
    IF NOT FOUND THEN
        RETURN ARRAY[0];
    END IF;
    PERFORM 1 FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock AND NOT c.held LIMIT 1;
    RETURN ARRAY[1 + FOUND::integer];
END $$;

-- A row that somebody deletes by hand: whoever held by it is told. Our own sessions tell it themselves where they should.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_gone_3() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify(OLD.wake, encode(OLD.id, 'hex'));
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS lockkeeper_gone ON @SCHEMA@.lockkeeper_claim;
CREATE TRIGGER lockkeeper_gone AFTER DELETE ON @SCHEMA@.lockkeeper_claim FOR EACH ROW
WHEN (OLD.held AND OLD.wake IS NOT NULL AND coalesce(pg_catalog.current_setting('lockkeeper.session', true), '') = '')
EXECUTE FUNCTION @SCHEMA@.lockkeeper_gone_3();

-- What one who waits sees, without changing anything: {state, how many wait before it and do not fit beside it,
-- microseconds until somebody at the front expires, microseconds since somebody was last let in}.
-- State: -1 not there, 0 waiting, 1 it is time to ask.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_look_3(p_lock bytea, p_id bytea, p_seq bigint) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    own record;
    next bigint;
    inside boolean;
    front bigint;
    since bigint;
    ahead_waiting bigint;
BEGIN
    SELECT c.held, c.weight, c.capacity INTO own FROM @SCHEMA@.lockkeeper_claim AS c
    WHERE c.lock = p_lock AND c.seq = p_seq AND c.id = p_id AND c.expires > now;
    IF NOT FOUND THEN
        RETURN ARRAY[-1, 0, 0, 0];
    ELSIF own.held THEN
        RETURN ARRAY[1, 0, 0, 0];
    END IF;
    SELECT c.seq INTO next FROM @SCHEMA@.lockkeeper_claim AS c
    WHERE c.lock = p_lock AND NOT c.held ORDER BY c.seq LIMIT 1;
    SELECT coalesce(bool_or(c.held), false), min(c.expires), max(c.since) FILTER (WHERE c.held)
    INTO inside, front, since FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.seq <= next;
    SELECT count(*) INTO ahead_waiting FROM @SCHEMA@.lockkeeper_claim AS c
    WHERE c.lock = p_lock AND c.seq >= next AND c.seq < p_seq
        AND c.weight + own.weight > least(c.capacity, own.capacity);
    -- Somebody at the front is gone, or nobody is inside: whoever asks sets the line in motion.
    RETURN ARRAY[(front <= now OR NOT inside)::integer, ahead_waiting, coalesce(front, now) - now,
        now - coalesce(since, now)];
END $$;

-- Keep the places of those who wait, all in one statement, without locking a line. p_wake is where they can be
-- called from now on. Answers for each what lockkeeper_look_3 does.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_keep_3(
    p_locks bytea[], p_ids bytea[], p_seqs bigint[], p_ttls bigint[], p_wakes text[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    it record;
    answer bigint[] := ARRAY[]::bigint[];
BEGIN
    PERFORM @SCHEMA@.lockkeeper_durable_3();
    FOR it IN
        SELECT * FROM unnest(p_locks, p_ids, p_seqs, p_ttls, p_wakes) AS a (lock, id, seq, ttl, wake)
    LOOP
        -- Whose row is locked at this moment is being let in, or removed.
        PERFORM 1 FROM @SCHEMA@.lockkeeper_claim AS c
        WHERE c.lock = it.lock AND c.seq = it.seq AND c.id = it.id AND NOT c.held AND c.expires > now
        FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE @SCHEMA@.lockkeeper_claim AS c SET expires = now + it.ttl, wake = it.wake
            WHERE c.lock = it.lock AND c.seq = it.seq;
            answer := answer || @SCHEMA@.lockkeeper_look_3(it.lock, it.id, it.seq);
        ELSE
            answer := answer || ARRAY[1, 0, 0, 0]::bigint[];
        END IF;
    END LOOP;
    RETURN answer;
END $$;

-- Take the lock away from its holders, for the operator. Answers who lost it.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_break_3(p_lock bytea)
RETURNS SETOF @SCHEMA@.lockkeeper_claim
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    it @SCHEMA@.lockkeeper_claim;
    number bigint;
BEGIN
    PERFORM @SCHEMA@.lockkeeper_durable_3();
    UPDATE @SCHEMA@.lockkeeper_lock AS l
    SET counter = greatest(l.counter + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.lock = p_lock RETURNING l.counter INTO number;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT s.next INTO number FROM @SCHEMA@.lockkeeper_settle_3(p_lock, ''::bytea, 0, number) AS s;
    FOR it IN DELETE FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = p_lock AND c.held RETURNING c.* LOOP
        IF it.wake IS NOT NULL THEN
            PERFORM pg_notify(it.wake, encode(it.id, 'hex'));
        END IF;
        RETURN NEXT it;
    END LOOP;
    SELECT s.next INTO number FROM @SCHEMA@.lockkeeper_settle_3(p_lock, ''::bytea, 0, number) AS s;
    UPDATE @SCHEMA@.lockkeeper_lock AS l SET counter = number WHERE l.lock = p_lock;
END $$;

-- Remove what dead processes left, of at most p_most lines, and as many lock rows that nobody has used for p_idle.
-- Does nothing if somebody cleaned less than p_every ago and found no more than that; all processes may call it.
-- Answers {claims removed, lock rows removed}.
CREATE OR REPLACE FUNCTION @SCHEMA@.lockkeeper_clean_3(p_every bigint, p_idle bigint, p_most bigint)
RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = on AS $$
DECLARE
    now CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    it record;
    number bigint;
    lines bigint := 0;
    claims bigint := 0;
    locks bigint;
BEGIN
    PERFORM 1 FROM @SCHEMA@.lockkeeper_store AS s WHERE s.cleaned <= now - p_every FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN ARRAY[0, 0];
    END IF;
    FOR it IN
        SELECT l.lock, greatest(l.counter + 1, now / 1000) AS next FROM @SCHEMA@.lockkeeper_lock AS l
        JOIN (SELECT DISTINCT c.lock FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.expires <= now LIMIT p_most) AS s
        ON s.lock = l.lock ORDER BY l.lock FOR UPDATE OF l SKIP LOCKED
    LOOP
        DELETE FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = it.lock AND c.expires <= now;
        GET DIAGNOSTICS locks = ROW_COUNT;
        claims := claims + locks;
        lines := lines + 1;
        SELECT s.next INTO number FROM @SCHEMA@.lockkeeper_settle_3(it.lock, ''::bytea, 0, it.next) AS s;
        UPDATE @SCHEMA@.lockkeeper_lock AS l SET counter = number WHERE l.lock = it.lock AND it.next < number;
    END LOOP;
    -- A turn that takes such a row at this moment gives it a present counter, and the row is then spared.
    DELETE FROM @SCHEMA@.lockkeeper_lock AS d USING (
        SELECT l.lock FROM @SCHEMA@.lockkeeper_lock AS l
        WHERE l.counter < (now - p_idle) / 1000
            AND NOT EXISTS (SELECT 1 FROM @SCHEMA@.lockkeeper_claim AS c WHERE c.lock = l.lock)
        LIMIT p_most FOR UPDATE SKIP LOCKED) AS idle
    WHERE d.lock = idle.lock;
    GET DIAGNOSTICS locks = ROW_COUNT;
    -- Where more is left, the next one goes on at once.
    IF lines < p_most AND locks < p_most THEN
        UPDATE @SCHEMA@.lockkeeper_store SET cleaned = now;
    END IF;
    RETURN ARRAY[claims, locks];
END $$;
