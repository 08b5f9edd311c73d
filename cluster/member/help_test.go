package member

import "github.com/hashicorp/memberlist"

func node(name, meta string) *memberlist.Node {
	return &memberlist.Node{Name: name, Meta: []byte(meta)}
}
