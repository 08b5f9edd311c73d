package node

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pulse/gateway"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
)

// openTokens puts access tokens before the node's own way of finding out who asks.
// A way that was given with the config stands as it is.
func (n *Node) openTokens() (gateway.Authenticator, error) {
	if !n.cfg.ownAuth {
		return n.cfg.Auth, nil
	}
	tokens, err := gateway.NewTokens(gateway.TokensConfig{
		Backend: n.router, Else: n.cfg.Auth, Required: n.cfg.RequireToken, Logger: n.logger,
	})
	if err != nil {
		return nil, err
	}
	n.background("tokens", tokens.Run)
	if n.cfg.BootstrapTokenFile == "" {
		return tokens, nil
	}
	token, err := tokenFile(n.cfg.BootstrapTokenFile)
	if err != nil {
		return nil, err
	}
	n.background("first token", func(ctx context.Context) { n.bringToken(ctx, token) })
	return tokens, nil
}

// tokenFile reads the token in a file, or makes both. The file is there before the
// cluster knows the token, so that one that is in force is never lost.
func tokenFile(path string) (access.Token, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		token := access.NewToken()
		return token, writeSecret(path, token.Reveal()+"\n")
	}
	if err != nil {
		return access.Token{}, fmt.Errorf("node: BootstrapTokenFile: %w", err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return access.Token{}, fmt.Errorf("node: BootstrapTokenFile %s can be read by anybody (mode %#o): chmod 600 it", path, info.Mode().Perm())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return access.Token{}, fmt.Errorf("node: BootstrapTokenFile: %w", err)
	}
	token, ok := access.ParseToken(strings.TrimSpace(string(data)))
	if !ok {
		return access.Token{}, fmt.Errorf("node: BootstrapTokenFile %s holds no token: it is pulse_, 32 hexadecimal digits, _ and 64 more; remove the file, and one is made", path)
	}
	return token, nil
}

// writeSecret makes a file that its owner alone can read, whole or not at all.
func writeSecret(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".pulse-token-*") // mode 0600
	if err != nil {
		return fmt.Errorf("node: BootstrapTokenFile: %w", err)
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Link(f.Name(), path) // never over one that is there
	}
	if err = errors.Join(err, os.Remove(f.Name())); err != nil {
		return fmt.Errorf("node: BootstrapTokenFile: %w", err)
	}
	return nil
}

const (
	// bringTokenPause is the time between two tries to bring the first token.
	bringTokenPause = time.Second
	bringWithin     = 10 * time.Second
)

// bringToken makes a token the first of the cluster, or finds that it has had one.
func (n *Node) bringToken(ctx context.Context, token access.Token) {
	tick := time.NewTicker(bringTokenPause)
	defer tick.Stop()
	for {
		done, err := n.tryToken(ctx, token)
		switch {
		case done && err == nil:
			n.logger.Info("the first admin token is in force", "file", n.cfg.BootstrapTokenFile, "token", token.ID)
			return
		case done:
			n.logger.Info("the token of the file is not in force: the cluster has had its first token", "file", n.cfg.BootstrapTokenFile)
			return
		}
		n.logger.Debug("the first token could not be brought yet", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (n *Node) tryToken(ctx context.Context, token access.Token) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, bringWithin)
	defer cancel()
	id := access.NewToken().ID
	results, err := n.router.Submit(ctx, []*pb.Command{{
		Id: id[:], Caller: &pb.Caller{Principal: "bootstrap"},
		Body: &pb.Command_CreateToken{CreateToken: &pb.CreateToken{
			TokenId: token.ID[:], SecretHash: token.Hash(), Name: "bootstrap", First: true,
			Grants: []*pb.TokenGrant{{Role: string(access.Admin), Namespace: access.Everywhere}},
		}},
	}})
	if err != nil {
		return false, err
	}
	switch result := results[0]; schema.Code(result.GetCode()) {
	case "":
		return true, nil
	case schema.Conflict:
		return true, schema.Conflict
	default:
		return false, &schema.Error{Code: schema.Code(result.Code), Message: result.Message}
	}
}

// sessionKey derives the key that seals the console's sessions, so that any node can
// open what any other has sealed.
func sessionKey(secret []byte) (*[32]byte, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "pulse console session v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key of sessions: %w", err)
	}
	return (*[32]byte)(key), nil
}
