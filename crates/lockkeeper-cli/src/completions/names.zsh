# The names of locks, asked of the store that the line names, or else of the one that the command would use.
_lockkeeper_names() {
    local -a typed store names
    local i
    typed=(${(Q)${(z)LBUFFER}})
    for (( i = 1; i <= $#typed; i++ )); do
        case $typed[i] in
            --url|--config) store+=($typed[i] $typed[i+1]) ;;
            --url=*|--config=*) store+=($typed[i]) ;;
        esac
    done
    names=(${(f)"$($typed[1] $store names -- $PREFIX 2>/dev/null)"})
    compadd -a names
}
