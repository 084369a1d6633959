# The names of locks, asked of the store that the line names, or else of the one that the command would use.
_lockkeeper_names() {
    _lockkeeper "$@"
    local line="${COMP_LINE:0:COMP_POINT}" command="" previous="" word name kept
    local -a words=() store=() names=()
    local typed="${line##*[[:space:]]}"
    read -ra words <<< "${line%"$typed"}"
    for word in "${words[@]:1}"; do
        case "$previous" in
            --url|--config) store+=("$previous" "$word"); previous=""; continue ;;
        esac
        case "$word" in
            --) return 0 ;;
            --url=*|--config=*) store+=("$word") ;;
            -*) ;;
            *) command="${command:-$word}" ;;
        esac
        previous="$word"
    done
    case "$previous" in
        VALUED) return 0 ;;
    esac
    case "$command" in
        COMMANDS) ;;
        *) return 0 ;;
    esac
    [[ "$typed" != -* ]] || return 0
    # Bash splits words at colons and the like: what stands before the last one is on the line already.
    kept="${typed%"$2"}"
    while IFS= read -r name; do
        names+=("${name#"$kept"}")
    done < <("$1" "${store[@]}" names -- "$typed" 2>/dev/null)
    if (( ${#names[@]} )); then
        COMPREPLY=("${names[@]}")
    fi
    return 0
}
complete -F _lockkeeper_names -o bashdefault -o default lockkeeper
