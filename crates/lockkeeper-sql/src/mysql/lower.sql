
DELIMITER //

DROP PROCEDURE IF EXISTS lockkeeper_lower_4 //
-- Hold less of the room from now on, where we stand, and let in all who fit beside us now. Never acquires. Answers
-- whether this claim holds.
CREATE PROCEDURE lockkeeper_lower_4(
    IN p_lock BINARY(32), IN p_id BINARY(16), IN p_weight BIGINT, IN p_capacity BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_now, v_last, v_head, v_edge, v_seq, v_in_use, v_room, v_expires BIGINT;
    DECLARE v_alone, v_waiting, v_empty BOOLEAN;
    DECLARE v_held BOOLEAN DEFAULT FALSE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT counter, head, edge, id IS NOT NULL INTO v_last, v_head, v_edge, v_alone
    FROM lockkeeper_lock WHERE `lock` = p_lock FOR UPDATE;
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    IF v_alone THEN
        -- Nobody else is there. Who comes finds our weight in this row.
        SELECT TRUE INTO v_held FROM lockkeeper_lock WHERE `lock` = p_lock AND id = p_id AND v_now < expires;
        IF v_held THEN
            UPDATE lockkeeper_lock SET weight = p_weight, capacity = p_capacity WHERE `lock` = p_lock;
        END IF;
    ELSEIF v_last IS NOT NULL THEN
        SELECT TRUE, seq INTO v_held, v_seq
        FROM lockkeeper_claim WHERE id = p_id AND `lock` = p_lock AND held AND v_now < expires;
        IF v_held THEN
            UPDATE lockkeeper_claim SET weight = p_weight, capacity = p_capacity
            WHERE `lock` = p_lock AND seq = v_seq;
            CALL lockkeeper_settle_4(p_lock, v_now, v_last, v_head, v_edge,
                v_in_use, v_room, v_expires, v_waiting, v_empty);
            UPDATE lockkeeper_lock SET counter = v_last, head = v_head, edge = v_edge WHERE `lock` = p_lock;
        END IF;
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
    SELECT v_held;
END //

DELIMITER ;
