// Hold a lock while this program works. Standard library only: go run lock.go
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
)

func main() {
	request, _ := http.NewRequest("POST", os.Getenv("LOCKKEEPER_ADDRESS")+"/v1/locks/orders%2F42?wait=60s", nil)
	request.Header.Set("Authorization", "Bearer "+os.Getenv("LOCKKEEPER_TOKEN"))
	lock, err := http.DefaultClient.Do(request)
	if err != nil || lock.StatusCode != 200 { // 409: not obtained in time
		fmt.Fprintln(os.Stderr, err, lock)
		os.Exit(1)
	}
	defer lock.Body.Close() // gives the lock back
	line, _ := bufio.NewReader(lock.Body).ReadBytes('\n')
	var granted struct{ Fence string }
	json.Unmarshal(line, &granted)
	fmt.Println("held", granted.Fence)
	bufio.NewReader(os.Stdin).ReadByte() // the work
}
