// A server of gRPC's own health service, outside; and clients of Go's, inside.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
)

func serve(chain string) {
	pair, err := tls.LoadX509KeyPair(chain, chain)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(server.Serve(listener))
}

func get(url string) {
	response, err := http.Get(url)
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s %d %s", response.Proto, response.StatusCode, body)
}

func check(host string) {
	connection, err := grpc.NewClient(host, grpc.WithTransportCredentials(credentials.NewTLS(nil)))
	if err != nil {
		log.Fatal(err)
	}
	ended, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client := grpc_health_v1.NewHealthClient(connection)
	answer, err := client.Check(ended, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Status)
	stream, err := client.Watch(ended, &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	fmt.Println(err)
}

func main() {
	map[string]func(string){"serve": serve, "get": get, "check": check}[os.Args[1]](os.Args[2])
}
