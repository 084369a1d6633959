# The names of locks, asked of the store that the line names, or else of the one that the command would use.
function __lockkeeper_names
    set -l typed (commandline -opc)
    set -l store
    for i in (seq (count $typed))
        switch $typed[$i]
            case --url --config
                set -a store $typed[$i] $typed[(math $i + 1)]
            case '--url=*' '--config=*'
                set -a store $typed[$i]
        end
    end
    $typed[1] $store names -- (commandline -ct) 2>/dev/null
end
complete -c lockkeeper -n "__fish_seen_subcommand_from COMMANDS; and not contains -- -- (commandline -opc)" -f -a "(__lockkeeper_names)"
