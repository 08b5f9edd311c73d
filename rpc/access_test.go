package rpc

import (
	"context"
	"maps"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "pulse/proto/pulse/v1"
	"pulse/schema/access"
)

func TestEveryMethodBetweenNodesHasALineInTheTable(t *testing.T) {
	t.Parallel()
	left := maps.Clone(access.RPC)
	desc := pb.NodeService_ServiceDesc
	names := []string{}
	for _, m := range desc.Methods {
		names = append(names, m.MethodName)
	}
	for _, s := range desc.Streams {
		names = append(names, s.StreamName)
	}
	for _, name := range names {
		method := "/" + desc.ServiceName + "/" + name
		if left[method].Permission != access.Node {
			t.Errorf("%s has no line in schema/access: say who may call it", method)
		}
		delete(left, method)
	}
	for method := range left {
		t.Errorf("the table has a line for %s, which is no method", method)
	}
}

// Unary calls and streams alike: a method that has no line is refused even to a
// node, and a listed one to whoever has not the cluster's token.
func TestAMethodIsForNodesAlone(t *testing.T) {
	t.Parallel()
	right := token(t, "secret")
	with := func(value string) context.Context {
		return metadata.NewIncomingContext(context.Background(), metadata.Pairs(tokenHeader, value))
	}
	for _, c := range []struct {
		name, method string
		ctx          context.Context
		want         codes.Code
	}{
		{"a node", "/pulse.v1.NodeService/Backup", with(right.value), codes.OK},
		{"another cluster's node", "/pulse.v1.NodeService/Backup", with(token(t, "other").value), codes.Unauthenticated},
		{"a client's access token", "/pulse.v1.NodeService/Backup", metadata.NewIncomingContext(context.Background(), metadata.Pairs("authorization", "Bearer pulse_1_2")), codes.Unauthenticated},
		{"a method that is not listed", "/pulse.v1.NodeService/Forgotten", with(right.value), codes.PermissionDenied},
		{"a method without its slash", "pulse.v1.NodeService/Backup", with(right.value), codes.PermissionDenied},
	} {
		_, err := right.unary(c.ctx, nil, &grpc.UnaryServerInfo{FullMethod: c.method}, func(context.Context, any) (any, error) { return nil, nil })
		if status.Code(err) != c.want {
			t.Errorf("%s, unary: %v", c.name, err)
		}
		err = right.stream(nil, serverStream{ctx: c.ctx}, &grpc.StreamServerInfo{FullMethod: c.method}, func(any, grpc.ServerStream) error { return nil })
		if status.Code(err) != c.want {
			t.Errorf("%s, stream: %v", c.name, err)
		}
	}
}

type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s serverStream) Context() context.Context { return s.ctx }
