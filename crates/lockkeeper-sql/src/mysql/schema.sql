-- Lockkeeper on MySQL and MariaDB, schema version 2. Safe to run again, with the client `mysql` or `mariadb`.
--
-- lockkeeper_lock   one row for each lock in use. `lock` is the SHA-256 of the name. `counter` is the last number
--                   given; it never falls behind the clock in milliseconds, so that it grows even if the row, the
--                   table or a failover's last commits are lost. A holder without company stands in this row: `id`
--                   is its claim, `seq` the number of its grant. Taking a free lock and giving it back then writes
--                   one row of one table. Before `closed` that short way is closed to whoever comes; while there
--                   are rows in lockkeeper_claim that is for ever.
-- lockkeeper_claim  one row for each claim that holds or waits in company. `seq` is its number in line; `counter` is
--                   that of its grant, 0 until it is told. Times are microseconds since 1970 by the server's clock.
--                   Whoever moves here from its lock's row has slot 0, all others have their `seq`: a row of the same
--                   key is written over its deleted predecessor, others stay in the way of readers until purged.
-- lockkeeper_store  one row about the store itself.
--
-- Whoever changes a line updates the lock's row first, so that changes of one line happen one after the other. As
-- long as a lock has rows in lockkeeper_claim, `id` is NULL: a claim is in one place, and moves only from its
-- lock's row to lockkeeper_claim.
--
-- The clock is UTC_TIMESTAMP, which no time zone and no daylight saving bends; UNIX_TIMESTAMP(NOW(6)) would
-- pass through the session's time zone and repeat an hour each autumn. In a procedure it moves on from
-- statement to statement, in a function it would stand still.

CREATE TABLE IF NOT EXISTS lockkeeper_lock (
    `lock` BINARY(32) NOT NULL PRIMARY KEY,
    name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    counter BIGINT NOT NULL,
    closed BIGINT NOT NULL DEFAULT @QUIET@,
    id BINARY(16),
    seq BIGINT,
    expires BIGINT,
    since BIGINT,
    ttl BIGINT,
    weight BIGINT,
    capacity BIGINT,
    host VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    pid BIGINT,
    owner VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    note VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS lockkeeper_claim (
    `lock` BINARY(32) NOT NULL,
    slot BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    id BINARY(16) NOT NULL,
    held BOOLEAN NOT NULL,
    counter BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    since BIGINT NOT NULL,
    ttl BIGINT NOT NULL,
    weight BIGINT NOT NULL,
    capacity BIGINT NOT NULL,
    host VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    pid BIGINT NOT NULL,
    owner VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    note VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    PRIMARY KEY (`lock`, slot)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS lockkeeper_store (
    one INT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    cleaned BIGINT NOT NULL,
    upgraded BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;
INSERT IGNORE INTO lockkeeper_store (one, version, cleaned) VALUES (1, 2, 0);

DELIMITER //

DROP PROCEDURE IF EXISTS lockkeeper_upgrade_2 //
-- Make version 2 of tables of version 1: locks that exist are closed to the short way, until they are free.
-- Programs of version 1 find neither their procedures nor the store's row as they expect it, and say so.
CREATE PROCEDURE lockkeeper_upgrade_2()
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    IF NOT EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
            AND table_name = 'lockkeeper_store' AND column_name = 'upgraded') THEN
        ALTER TABLE lockkeeper_store ADD COLUMN upgraded BIGINT NOT NULL DEFAULT 0;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
            AND table_name = 'lockkeeper_lock' AND column_name = 'closed') THEN
        ALTER TABLE lockkeeper_lock
            ADD COLUMN closed BIGINT NOT NULL DEFAULT 9223372036854775807, ADD COLUMN id BINARY(16),
            ADD COLUMN seq BIGINT, ADD COLUMN expires BIGINT, ADD COLUMN since BIGINT, ADD COLUMN ttl BIGINT,
            ADD COLUMN weight BIGINT, ADD COLUMN capacity BIGINT,
            ADD COLUMN host VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, ADD COLUMN pid BIGINT,
            ADD COLUMN owner VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
            ADD COLUMN note VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
        ALTER TABLE lockkeeper_lock ALTER COLUMN closed SET DEFAULT 0;
    END IF;
    UPDATE lockkeeper_store SET version = 2 WHERE one = 1 AND version = 1;
END //

DROP PROCEDURE IF EXISTS lockkeeper_turn_1 //
DROP PROCEDURE IF EXISTS lockkeeper_leave_1 //
DROP PROCEDURE IF EXISTS lockkeeper_break_1 //
DROP PROCEDURE IF EXISTS lockkeeper_clean_1 //
DROP PROCEDURE IF EXISTS lockkeeper_settle_1 //
CALL lockkeeper_upgrade_2() //

DROP PROCEDURE IF EXISTS lockkeeper_settle_2 //
-- The one rule of who enters, for a line that is locked: forget the expired, then let in whoever fits, first
-- come first served, nobody past the first who does not fit or who does not know yet that it is in: counters
-- are given in the order of the line. Tells about the line as p_id sees it, who hears of it now.
CREATE PROCEDURE lockkeeper_settle_2(
    IN p_lock BINARY(32), IN p_id BINARY(16),
    OUT o_now BIGINT, OUT o_in_use BIGINT, OUT o_room BIGINT, OUT o_waiting BIGINT, OUT o_untold BOOLEAN,
    OUT o_mine BIGINT, OUT o_mine_held BOOLEAN, OUT o_mine_counter BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    -- Before this time the room is closed. Set when lost tables are made anew: old holders must learn of it first.
    DECLARE v_quiet_until BIGINT DEFAULT @QUIET@;
    DECLARE v_seq, v_weight, v_capacity BIGINT;
    DECLARE v_id BINARY(16);
    SET o_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    -- A renewal does not lock the line. Whoever is renewed at this moment survives this DELETE, and the SELECT
    -- below, which looks afterwards, counts it.
    DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND expires <= o_now;
    SELECT COALESCE(SUM(IF(held, weight, 0)), 0), COALESCE(MIN(IF(held, capacity, NULL)), 4294967295),
        COALESCE(SUM(NOT held), 0), COALESCE(MAX(held AND counter = 0 AND id <> p_id), FALSE),
        MAX(IF(id = p_id, seq, NULL)), COALESCE(MAX(IF(id = p_id, held, NULL)), FALSE),
        COALESCE(MAX(IF(id = p_id, counter, NULL)), 0)
    INTO o_in_use, o_room, o_waiting, o_untold, o_mine, o_mine_held, o_mine_counter
    FROM lockkeeper_claim WHERE `lock` = p_lock;
    IF o_now < v_quiet_until THEN
        SET o_room = 0;
    END IF;
    admitting: WHILE 0 < o_waiting AND NOT o_untold DO
        SELECT seq, weight, capacity, id INTO v_seq, v_weight, v_capacity, v_id
        FROM lockkeeper_claim WHERE `lock` = p_lock AND NOT held ORDER BY seq LIMIT 1;
        IF LEAST(o_room, v_capacity) < o_in_use + v_weight THEN
            LEAVE admitting;
        END IF;
        UPDATE lockkeeper_claim SET held = TRUE, since = o_now WHERE `lock` = p_lock AND seq = v_seq;
        SET o_in_use = o_in_use + v_weight, o_room = LEAST(o_room, v_capacity), o_waiting = o_waiting - 1;
        IF v_id = p_id THEN
            SET o_mine_held = TRUE;
        ELSE
            SET o_untold = TRUE;
        END IF;
    END WHILE;
END //

DROP PROCEDURE IF EXISTS lockkeeper_gather_2 //
-- Move a holder without company to the others, for a line that is locked, and close the short way.
CREATE PROCEDURE lockkeeper_gather_2(IN p_lock BINARY(32))
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    INSERT INTO lockkeeper_claim
    SELECT `lock`, 0, seq, id, TRUE, seq, expires, since, ttl, weight, capacity, host, pid, owner, note
    FROM lockkeeper_lock WHERE `lock` = p_lock AND id IS NOT NULL;
    UPDATE lockkeeper_lock SET closed = 9223372036854775807, id = NULL WHERE `lock` = p_lock;
END //

DROP PROCEDURE IF EXISTS lockkeeper_turn_2 //
-- Take a place, or keep it, and tell whether it is our turn.
-- Answers held, counter, wanted, ahead, ahead_waiting, microseconds until somebody ahead expires.
CREATE PROCEDURE lockkeeper_turn_2(
    IN p_lock BINARY(32), IN p_id BINARY(16), IN p_name VARCHAR(512) CHARACTER SET utf8mb4, IN p_ttl BIGINT,
    IN p_weight BIGINT, IN p_capacity BIGINT, IN p_patient BOOLEAN,
    IN p_host VARCHAR(256) CHARACTER SET utf8mb4, IN p_pid BIGINT,
    IN p_owner VARCHAR(256) CHARACTER SET utf8mb4, IN p_note VARCHAR(256) CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY INVOKER
asking: BEGIN
    DECLARE v_number, v_now, v_in_use, v_room, v_waiting, v_mine, v_left, v_counter, v_wanted BIGINT;
    DECLARE v_ahead, v_ahead_waiting, v_ahead_expires BIGINT DEFAULT 0;
    DECLARE v_untold, v_held BOOLEAN;
    -- An error must not leave a transaction open, as a lock wait time-out would.
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    -- LAST_INSERT_ID(x) answers x and remembers it for LAST_INSERT_ID().
    INSERT INTO lockkeeper_lock (`lock`, name, counter)
    VALUES (p_lock, p_name,
        LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000))
    ON DUPLICATE KEY UPDATE counter = LAST_INSERT_ID(
        GREATEST(counter + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000));
    SET v_number = LAST_INSERT_ID();
    CALL lockkeeper_gather_2(p_lock);
    IF p_weight <= p_capacity AND NOT EXISTS (SELECT 1 FROM lockkeeper_claim WHERE `lock` = p_lock) THEN
        -- Nobody holds and nobody waits.
        SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), v_held = @QUIET@ <= v_now;
    ELSE
        SET v_held = FALSE;
    END IF;
    IF v_held THEN
        UPDATE lockkeeper_lock
        SET closed = @QUIET@, id = p_id, seq = v_number, expires = v_now + p_ttl, since = v_now, ttl = p_ttl,
            weight = p_weight, capacity = p_capacity, host = p_host, pid = p_pid, owner = p_owner, note = p_note
        WHERE `lock` = p_lock;
        COMMIT;
        SELECT 1, v_number, 0, 0, 0, 0;
        LEAVE asking;
    END IF;
    CALL lockkeeper_settle_2(
        p_lock, p_id, v_now, v_in_use, v_room, v_waiting, v_untold, v_mine, v_held, v_counter);
    SET v_wanted = 0 < v_waiting;
    IF v_mine IS NULL THEN
        SET v_held = v_waiting = 0 AND NOT v_untold AND v_in_use + p_weight <= LEAST(v_room, p_capacity);
        IF v_held THEN
            SET v_counter = v_number;
        END IF;
        IF v_held OR p_patient THEN
            INSERT INTO lockkeeper_claim
            VALUES (p_lock, v_number, v_number, p_id, v_held, v_counter, v_now + p_ttl, v_now, p_ttl, p_weight,
                p_capacity, p_host, p_pid, p_owner, p_note);
        END IF;
        SET v_mine = v_number;
    ELSEIF v_held OR p_patient THEN
        -- Whoever left has let us in, and now we are told: of several in one room, the last told has the largest.
        IF v_held AND v_counter = 0 THEN
            SET v_counter = v_number;
        END IF;
        UPDATE lockkeeper_claim SET expires = v_now + p_ttl, counter = v_counter
        WHERE `lock` = p_lock AND seq = v_mine;
    ELSE
        SET v_left = v_mine;
        DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND seq = v_left;
        CALL lockkeeper_settle_2(
            p_lock, p_id, v_now, v_in_use, v_room, v_waiting, v_untold, v_mine, v_held, v_counter);
        SET v_mine = v_left;
    END IF;
    IF NOT v_held THEN
        SELECT COUNT(*), COALESCE(SUM(NOT held), 0), COALESCE(MIN(expires), 9223372036854775807) - v_now
        INTO v_ahead, v_ahead_waiting, v_ahead_expires
        FROM lockkeeper_claim WHERE `lock` = p_lock AND seq < v_mine;
    END IF;
    COMMIT;
    SELECT v_held, v_counter, v_wanted, v_ahead, v_ahead_waiting, v_ahead_expires;
END //

DROP PROCEDURE IF EXISTS lockkeeper_leave_2 //
-- Give up the lock, or the place, or nothing; let in whoever is next.
CREATE PROCEDURE lockkeeper_leave_2(IN p_lock BINARY(32), IN p_id BINARY(16))
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now, v_in_use, v_room, v_waiting, v_mine, v_counter BIGINT;
    DECLARE v_untold, v_held BOOLEAN;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    UPDATE lockkeeper_lock
    SET counter = GREATEST(counter + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000),
        id = IF(id = p_id, NULL, id)
    WHERE `lock` = p_lock;
    DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND id = p_id;
    IF EXISTS (SELECT 1 FROM lockkeeper_claim WHERE `lock` = p_lock) THEN
        CALL lockkeeper_settle_2(
            p_lock, p_id, v_now, v_in_use, v_room, v_waiting, v_untold, v_mine, v_held, v_counter);
    ELSE
        UPDATE lockkeeper_lock SET closed = @QUIET@ WHERE `lock` = p_lock;
    END IF;
    COMMIT;
END //

DROP PROCEDURE IF EXISTS lockkeeper_break_2 //
-- Take the lock away from its holders, for the operator. Answers who lost it.
CREATE PROCEDURE lockkeeper_break_2(IN p_lock BINARY(32))
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now, v_in_use, v_room, v_waiting, v_mine, v_counter BIGINT;
    DECLARE v_untold, v_held BOOLEAN;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    UPDATE lockkeeper_lock
    SET counter = GREATEST(counter + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)
    WHERE `lock` = p_lock;
    CALL lockkeeper_gather_2(p_lock);
    CALL lockkeeper_settle_2(
        p_lock, '', v_now, v_in_use, v_room, v_waiting, v_untold, v_mine, v_held, v_counter);
    SELECT l.name, v_now, c.held, c.counter, c.since, c.expires, c.weight, c.host, c.pid, c.owner, c.note
    FROM lockkeeper_claim AS c JOIN lockkeeper_lock AS l ON l.`lock` = c.`lock`
    WHERE c.`lock` = p_lock AND c.held ORDER BY c.seq;
    DELETE FROM lockkeeper_claim WHERE `lock` = p_lock AND held;
    CALL lockkeeper_settle_2(
        p_lock, '', v_now, v_in_use, v_room, v_waiting, v_untold, v_mine, v_held, v_counter);
    COMMIT;
END //

DROP PROCEDURE IF EXISTS lockkeeper_clean_2 //
-- Remove what dead processes left, and lock rows that nobody has used for p_idle. Does nothing if somebody
-- cleaned less than p_every ago; all processes may call it. Answers claims removed, lock rows removed.
CREATE PROCEDURE lockkeeper_clean_2(IN p_every BIGINT, IN p_idle BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_began BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    DECLARE v_stale BINARY(32) DEFAULT NULL;
    DECLARE v_claims, v_locks, v_rounds BIGINT DEFAULT 0;
    DECLARE v_now, v_in_use, v_room, v_waiting, v_mine, v_counter BIGINT;
    DECLARE v_untold, v_held BOOLEAN;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    UPDATE lockkeeper_store SET cleaned = v_began WHERE one = 1 AND cleaned <= v_began - p_every;
    IF 0 < ROW_COUNT() THEN
        COMMIT;
        SELECT COUNT(*) INTO v_claims FROM lockkeeper_claim WHERE expires <= v_began;
        cleaning: WHILE v_rounds < 1000 DO
            SET v_rounds = v_rounds + 1;
            SELECT MIN(`lock`) INTO v_stale FROM lockkeeper_claim
            WHERE expires <= v_began AND (v_stale IS NULL OR v_stale < `lock`);
            IF v_stale IS NULL THEN
                LEAVE cleaning;
            END IF;
            COMMIT;
            SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
            START TRANSACTION;
            UPDATE lockkeeper_lock SET counter = counter + 1 WHERE `lock` = v_stale;
            CALL lockkeeper_settle_2(
                v_stale, '', v_now, v_in_use, v_room, v_waiting, v_untold, v_mine, v_held, v_counter);
            COMMIT;
        END WHILE;
        COMMIT;
        -- Holders without company. Whoever is renewed at this moment is spared.
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        START TRANSACTION;
        UPDATE lockkeeper_lock SET id = NULL WHERE id IS NOT NULL AND expires <= v_began;
        SET v_claims = v_claims + ROW_COUNT();
        COMMIT;
        -- A turn that takes such a row at this moment gives it a present counter, and the row is then spared.
        DELETE l FROM lockkeeper_lock AS l JOIN (
            SELECT i.`lock` FROM lockkeeper_lock AS i LEFT JOIN lockkeeper_claim AS c ON c.`lock` = i.`lock`
            WHERE i.counter < (v_began - p_idle) DIV 1000 AND i.id IS NULL AND c.`lock` IS NULL LIMIT 10000
        ) AS idle ON idle.`lock` = l.`lock` WHERE l.counter < (v_began - p_idle) DIV 1000 AND l.id IS NULL;
        SET v_locks = ROW_COUNT();
        COMMIT;
    END IF;
    SELECT v_claims, v_locks;
END //

DELIMITER ;
